"""What people ask an assistant, aloud and in writing: templates with slots, for many thousands."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from random import Random

TEMPLATES: Sequence[str] = (
    # timers, alarms, reminders
    "Set a timer for {count} minutes.",
    "Set a {count} minute timer for the {dish}.",
    "Wake me up at {hour} {day}.",
    "Remind me {day} to {chore}.",
    "Remind me at {hour} that I have to {chore}.",
    "How long does it take to cook {dish}?",
    "Cancel the alarm for {hour}, please.",
    "How many minutes are {count} hours?",
    # the home
    "Turn {switch} the lights in the {room}.",
    "Could you turn {switch} the {appliance} in the {room}?",
    "Dim the lights in the {room} to {count} percent.",
    "It is too {temperature} in the {room}.",
    "Is the {appliance} in the {room} still running?",
    # weather
    "What will the weather be like in {city} {day}?",
    "Do I need an umbrella in {city} {day}?",
    "Is it usually {temperature} in {city} in {month}?",
    "What should I wear in {city} in {month}?",
    # lists, shopping, cooking
    "Add {food} and {food2} to my shopping list.",
    "Take {food} off the shopping list.",
    "What can I cook with {food} and {food2}?",
    "What goes well with {food}?",
    "What can I use instead of {food}?",
    "Can I have {food} every day?",
    "How do I make {dish}?",
    "What do I need to buy for {dish} for {count} people?",
    # facts and definitions
    "What is {concept}?",
    "Explain {concept} to a child.",
    "Explain {concept} in one sentence.",
    "Why is {concept} important?",
    "When did people first understand {concept}?",
    "What does the word {word} mean?",
    "Use the word {word} in a sentence.",
    "What is the opposite of {word}?",
    "How do you spell {word}?",
    "What is the capital of {country}?",
    "What language do people speak in {country}?",
    "What is {country} famous for?",
    "Tell me something interesting about {country}.",
    "Tell me a fact about {animal}.",
    "What do {animal} eat?",
    "How long do {animal} live?",
    "Where do {animal} live?",
    "Are {animal} dangerous?",
    "Who was {person}?",
    "What is {person} known for?",
    "When was {person} born?",
    # numbers
    "What is {count} times {count2}?",
    "What is {count} plus {count2}?",
    "What is {count} percent of {count2}?",
    "How many seconds are {count} minutes?",
    "How many centimetres are {count} inches?",
    "How many kilometres are {count} miles?",
    "Convert {count} {measures}.",
    # how-tos and advice
    "How do I {task}?",
    "What is the easiest way to {task}?",
    "Do you have a tip for me? I want to {task}.",
    "What should I not do when I {task}?",
    "How can I become better at {hobby}?",
    "What do I need for {hobby}?",
    "Is {hobby} expensive?",
    "I feel {mood} today. What should I do?",
    "Recommend a {genre} book.",
    "Recommend a {genre} film. I want to watch it {day}.",
    "What could I give my {relative} as a present?",
    "My {relative} likes {hobby}. What could we do {day}?",
    # travel
    "How do I get from {city} to {city2}?",
    "What should I see in {city}?",
    "Is {city} worth a visit in {month}?",
    "What time is it in {city} when it is {hour} here?",
    # small talk
    "Good morning! I feel {mood}.",
    "Tell me a joke about {animal}.",
    "Tell me a short story about {animal} and a {relative}.",
    "Write a short poem about {concept}.",
    "Sing me something about {food}.",
    "Do you like {food}?",
    "What is your favourite {genre} book?",
    "Have you ever been to {city}?",
    "I am going to {city} {day}.",
    "Say something nice to my {relative}.",
    "My {relative} is {mood}. What can I say?",
    # texts to write
    "Write {text} about {subject}.",
    "Write {text} about {subject} in a {tone} tone. Use fewer than {count}0 words.",
    "Draft {text} to my {relative} in which I {intent}. Keep it {tone}.",
    "Compose a {tone} email to my {relative}: I want to {intent}.",
    "Develop an outline for {text} that compares {subject} with {subject2}.",
    "Write the opening paragraph of a {genre} story in which a {relative} discovers {subject}.",
    "Describe a {room} in {city} so that one can see, hear and smell it.",
    "Give me {count} headlines for an article on {subject}.",
    "Rewrite this in a {tone} tone: {sentence}",
    "Correct the grammar of this sentence: {sentence}",
    "Summarise in one sentence why {subject} matters for {subject2}.",
    # parts to play
    "Pretend to be {person}. What do you think of {subject}?",
    "You are a {profession}. Explain {subject} to your {relative}.",
    "As a {profession}, what would you advise someone who wants to {task}?",
    "Imagine you are {animal} in {city}. Describe your day.",
    # reasoning and numbers
    "What are the advantages and disadvantages of {subject}?",
    "Compare {subject} and {subject2}. Which of them matters more, and why?",
    "Explain step by step how {concept} works.",
    "A {profession} buys {count} {food} for {count2} dollars each and sells a half of them for "
    "{count3} dollars each. How much money is made or lost?",
    "A train leaves {city} at {hour} and travels {count}0 kilometres at {count2} kilometres an "
    "hour. How long does it take?",
    "If {count} people need {count2} hours to {task}, how long do {count3} people need?",
    "The sum of two numbers is {count} and their difference is {count2}. What are they?",
    "Solve for x: {count}x + {count2} = {count3}.",
    "What is the area of a rectangle of {count} by {count2} metres? Show your steps.",
    "Is this true or false, and why: {sentence}",
    # code
    "Write a {language} function that {routine}.",
    "Write a {language} program that {routine}, and explain how it works.",
    "How do I {coding} in {language}?",
    "What is the difference between {language} and {language2}?",
    "Why does my {language} program crash when it {routine}?",
    # facts to take out of texts
    "List the {count} most important facts about {country} as a table.",
    "Name the persons and places in this sentence: {sentence}",
    "Is the opinion in this sentence good, bad or neutral? {sentence}",
    "Which books, films or events have to do with {subject}? Answer in JSON.",
    "What caused {event}, and what were its consequences?",
    "How did {event} change life in {country}?",
    "Explain the idea of {theory} with an example.",
)

# Left to itself a small model asks for stories, code and essays. Given the first words it asks what
# people ask aloud, and each time something else.
_BEGINNINGS = (
    "Am I allowed to|Are there any|Are you able to|Can I|Can I use|Can you explain|"
    "Can you give me|Can you help me|Can you recommend|Can you suggest|Can you teach me|"
    "Can you tell me|Could you tell me why|Describe|Do I need|Do you have any ideas for|"
    "Do you have any tips for|Do you know|Does it matter if|Explain how|Explain in simple words|"
    "Explain to a child|Explain why|Give me a few examples of|Give me a quick|"
    "Give me a recipe for|Give me a tip|Give me an idea|Give me five|Give me some advice|"
    "Give me three|Good evening! I|Good morning! What|Hello! I need|Help me choose|"
    "Help me decide|Help me plan|Hi, I want to|How can I|How can I get rid of|How can I tell if|"
    "How can you|How come|How deep is|How did people|How do I|How do I clean|How do I cook|"
    "How do I get|How do I keep|How do I make|How do I remove|How do birds|How do people|"
    "How do plants|How do they make|How do you|How does|How does a|How does the|How far|How fast|"
    "How high|How hot|How important is|How long can|How long does it take|How long should I|"
    "How many|How much|How often should I|How old|How should I|I am afraid of|I am bored|I can't|"
    "I don't know how to|I don't understand|I feel|I forgot|I have a headache|I have a meeting|"
    "I have only|I have to|I just moved|I lost|I need a|I need help with|I want to cook|"
    "I want to learn|I would like to|I'm cooking|I'm going to|I'm having trouble|I'm learning|"
    "I'm nervous about|I'm tired of|In which country|Is it a good idea to|Is it better to|"
    "Is it dangerous to|Is it possible to|Is it safe to|Is it true that|Is there a|"
    "Is there an easy way to|Let's play|List|My cat|My child|My dog|My friend|My grandmother|"
    "My kitchen|My phone|My room|Name a few|Name five|Name some|Name three|Please explain|"
    "Please tell me|Quiz me on|Recommend|Remind me|Repeat|Say something|Should I|Spell|Suggest|"
    "Teach me|Tell me a bedtime story|Tell me a fun fact|Tell me a joke|"
    "Tell me a short story about|Tell me about|Tell me how|Tell me something about|Tell me what|"
    "Tell me why|Translate|What are good|What are some|What are the|What are the benefits of|"
    "What can I cook|What can I do|What can I make with|What can you tell me about|What causes|"
    "What color|What could I|What do|What do I do if|What do people|What do you call|"
    "What do you think|What does a|What does it mean|What does the|What happened|What happens if|"
    "What happens to|What happens when|What is a|What is a good|What is an easy|"
    "What is it like to|What is the best|What is the best way to|What is the biggest|"
    "What is the capital of|What is the difference between|What is the fastest|"
    "What is the meaning of|What is the oldest|What is your favorite|What kind of|What makes|"
    "What should I|What should I do if|What should I eat|What should I say|What should I wear|"
    "What should I write|What was|What were|What would happen if|What would you|What's a|"
    "What's the|When did|When is|When is the best time to|When should I|When was|Where can I|"
    "Where did|Where do|Where is|Where should I|Which|Which animal|Which foods|Which is better|"
    "Who|Who invented|Who was|Who wrote|Why are|Why can't|Why did|Why do|Why do cats|"
    "Why do people|Why do we|Why does|Why is|Why is it important to|Why is my|Why should I|"
    "Write a|Write a short|Would it be okay to"
)
BEGINNINGS: Sequence[str] = _BEGINNINGS.split("|")

OPENINGS: Sequence[str] = (
    *[""] * 5,
    "Hello. ",
    "Hey there. ",
    "Excuse me. ",
    "Quick question. ",
    "One more thing. ",
)

_LISTED: Mapping[str, str] = {
    "animal": (
        "bees|cats|dolphins|elephants|foxes|frogs|hedgehogs|horses|octopuses|owls|penguins|"
        "rabbits|sharks|snails|spiders|tigers|whales|wolves"
    ),
    "appliance": (
        "air conditioner|coffee machine|dishwasher|fan|heating|radio|television|vacuum cleaner|"
        "washing machine"
    ),
    "chore": (
        "book a table|buy stamps|call the dentist|charge the car|feed the cat|fetch the parcel|"
        "pay the rent|pick up the kids|renew my passport|take out the rubbish|take my medicine|"
        "water the plants|write to Anna"
    ),
    "city": (
        "Amsterdam|Athens|Berlin|Boston|Cairo|Chicago|Dublin|Istanbul|Lisbon|London|Madrid|"
        "Melbourne|Mumbai|Nairobi|New York|Oslo|Paris|Prague|Rome|San Francisco|Seoul|Singapore|"
        "Tokyo|Toronto|Vienna"
    ),
    "concept": (
        "a black hole|a glacier|a leap year|a rainbow|a vaccine|an eclipse|"
        "artificial intelligence|climate change|democracy|DNA|electricity|evolution|friendship|"
        "gravity|inflation|magnetism|music|photosynthesis|radioactivity|recycling|sleep|"
        "the big bang|the human heart|the immune system|the internet|the moon|the ozone layer|"
        "the stock market|the water cycle|time"
    ),
    "count": "2|3|4|5|6|7|8|9|10|12|15|20|25|30|40|45|50|60|75|90",
    "country": (
        "Argentina|Australia|Brazil|Canada|Chile|China|Cuba|Egypt|Ethiopia|Finland|France|"
        "Germany|Greece|Iceland|India|Ireland|Italy|Japan|Kenya|Mexico|Morocco|Nepal|New Zealand|"
        "Norway|Peru|Poland|Portugal|South Africa|South Korea|Spain|Sweden|Switzerland|Thailand|"
        "Turkey|Vietnam"
    ),
    "day": (
        "at the weekend|next week|on Friday|on Monday|on Saturday|on Wednesday|this evening|"
        "today|tomorrow|tomorrow morning|tonight"
    ),
    "coding": (
        "connect to a database|handle errors|loop over a dictionary|open a web page|parse JSON|"
        "read a file line by line|reverse a string|sort a list|split a string|test a function|"
        "use regular expressions|write a class"
    ),
    "dish": (
        "an omelette|apple pie|baked potatoes|banana bread|chicken soup|chili|fried rice|"
        "green curry|guacamole|lasagna|lentil soup|mushroom risotto|pancakes|pizza|potato salad|"
        "rice|roast chicken|scrambled eggs|spaghetti|tomato sauce"
    ),
    "event": (
        "the fall of the Berlin Wall|the fall of the Roman Empire|the First World War|"
        "the French Revolution|the Great Depression|the industrial revolution|the moon landing|"
        "the plague in Europe|the printing press|the Second World War|the space race"
    ),
    "food": (
        "apples|avocados|bananas|beans|bread|broccoli|butter|carrots|cheese|chicken|chocolate|"
        "coffee|cream|eggs|fish|flour|garlic|honey|lemons|lentils|milk|mushrooms|nuts|oats|"
        "onions|pasta|peas|potatoes|rice|spinach|sugar|tofu|tomatoes|yoghurt"
    ),
    "genre": "detective|fantasy|funny|historical|romantic|scary|science fiction|short|travel",
    "hobby": (
        "baking|chess|climbing|cycling|drawing|fishing|gardening|juggling|knitting|painting|"
        "photography|playing the guitar|playing the piano|public speaking|running|singing|skiing|"
        "swimming|tennis|writing|yoga"
    ),
    "hour": (
        "five|half past six|half past nine|midnight|noon|quarter past eight|quarter to seven|"
        "seven|ten|three in the afternoon|twenty past four"
    ),
    "intent": (
        "apologise for being late|ask for a day off|ask for feedback on my report|"
        "ask for their help|cancel our meeting|complain about the noise|congratulate them|"
        "invite them to a party|offer my help|thank them for a present|turn down an invitation"
    ),
    "language": "C|C++|Go|HTML|Java|JavaScript|Python|Rust|SQL",
    "measures": (
        "cups to litres|degrees Fahrenheit to Celsius|feet to metres|gallons to litres|"
        "grams to ounces|inches to centimetres|kilograms to pounds|kilometres to miles|"
        "litres to gallons|metres to feet|miles to kilometres|ounces to grams|pounds to kilograms"
    ),
    "month": (
        "April|August|December|February|January|July|June|March|May|November|October|September"
    ),
    "mood": (
        "a bit ill|angry|bored|curious|great|happy|lonely|nervous|proud|sad|sleepy|stressed|"
        "tired|worried"
    ),
    "person": (
        "Ada Lovelace|Alan Turing|Albert Einstein|Charles Darwin|Cleopatra|Frida Kahlo|"
        "Galileo Galilei|Isaac Newton|Jane Austen|Leonardo da Vinci|Mahatma Gandhi|Marie Curie|"
        "Martin Luther King|Mozart|Napoleon|Nelson Mandela|Neil Armstrong|Rosa Parks|Shakespeare|"
        "Vincent van Gogh"
    ),
    "profession": (
        "baker|chemist|detective|doctor|economist|engineer|farmer|gardener|historian|lawyer|"
        "mathematician|nurse|philosopher|pilot|programmer|reporter|teacher|travel guide"
    ),
    "relative": (
        "aunt|best friend|boss|brother|colleague|daughter|father|grandfather|grandmother|husband|"
        "mother|neighbour|sister|son|teacher|wife"
    ),
    "routine": (
        "adds two matrices|checks whether a number is prime|counts the words of a file|"
        "converts a date|draws a circle|finds duplicates in a list|"
        "finds the common elements of two arrays|finds the largest number of a list|"
        "finds the shortest path in a graph|"
        "merges two sorted lists|prints the Fibonacci numbers|removes vowels from a text|"
        "reverses a linked list|sorts names by their length|turns a list into a tree|"
        "validates an email address"
    ),
    "room": "attic|basement|bathroom|bedroom|dining room|garage|hall|kitchen|living room|office",
    "sentence": (
        "He go to school every days and learn much thing.|"
        "In 1969 Neil Armstrong and Buzz Aldrin landed on the moon while Michael Collins waited.|"
        "My new phone arrived late, but the camera is better than I had hoped.|"
        "She don't like neither coffee or tea.|"
        "The food was cold and the waiter ignored us all evening.|"
        "The river Rhine flows from Switzerland through Germany to the Netherlands.|"
        "The sun is closer to the earth in summer than in winter.|"
        "There is more water in a cucumber than in a slice of bread.|"
        "We was waiting for the bus when it begin to rain.|"
        "You only use ten percent of your brain."
    ),
    "subject": (
        "a city without cars|artificial intelligence|bees|climate change|cooking at home|"
        "electric cars|fashion|fast food|football|freedom|great inventions|healthy sleep|"
        "learning languages|life on Mars|modern art|money|music at work|nuclear power|old age|"
        "online shopping|open source software|plastic in the sea|public libraries|remote work|"
        "renewable energy|school uniforms|smartphones|social media|space travel|teamwork|"
        "the four day week|the history of writing|tourism|trust|vegetarian food|video games|"
        "volunteering|water"
    ),
    "switch": "off|on",
    "task": (
        "back up my phone|build a bird house|calm down before an exam|clean a wooden table|"
        "clean white shoes|fall asleep faster|fix a flat tyre|fold a shirt|grow tomatoes|"
        "iron a shirt|keep flowers fresh|learn a language|learn to swim|make new friends|"
        "pack a suitcase|paint a wall|peel garlic|plan a party|remember names|"
        "remove a coffee stain|save money|save water|sharpen a knife|start running|"
        "stop being late|tie a tie|train a puppy|unblock a sink|wake up early|"
        "wash a woollen jumper|write a letter of thanks"
    ),
    "temperature": "bright|cold|dark|dry|humid|loud|warm|windy",
    "text": (
        "a blog post|a children's story|a cover letter|a dialogue|a haiku|a joke|a letter|"
        "a limerick|a newspaper article|a paragraph|a persuasive essay|a poem|"
        "a product description|a recipe|a review|a short story|a song|a speech|a toast|"
        "a travel report|an advertisement"
    ),
    "theory": (
        "comparative advantage|game theory|natural selection|opportunity cost|plate tectonics|"
        "probability|relativity|supply and demand|the categorical imperative|the placebo effect|"
        "the prisoner's dilemma|the scientific method"
    ),
    "tone": "calm|cheerful|dramatic|formal|friendly|funny|humble|poetic|polite|serious|simple",
    "word": (
        "ambiguous|brave|candid|cautious|diligent|eager|fragile|frugal|generous|genuine|humble|"
        "ironic|lenient|meticulous|modest|naive|obvious|patient|reluctant|resilient|rigid|serene|"
        "spontaneous|stubborn|subtle|tedious|vague|vivid"
    ),
}

SLOTS: Mapping[str, Sequence[str]] = {name: listed.split("|") for name, listed in _LISTED.items()}

_SLOT = re.compile(r"\{([a-z]+)(\d?)\}")


def fillings(template: str) -> int:
    """How many requests a template stands for."""
    return math.prod(len(SLOTS[name]) for name, _ in _SLOT.findall(template))


# Neither all alike, which would repeat the narrow ones, nor by their fillings, which would hardly
# leave anything else than sums to work out.
_WIDEST = 60.0
_WEIGHTS = [min(math.sqrt(fillings(template)), _WIDEST) for template in TEMPLATES]


def request(rng: Random) -> str:
    """One request: a template, wide ones more often than narrow ones, with its slots filled."""
    (template,) = rng.choices(TEMPLATES, _WEIGHTS)
    return rng.choice(OPENINGS) + _SLOT.sub(lambda slot: rng.choice(SLOTS[slot[1]]), template)
