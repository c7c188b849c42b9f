"""What people ask a voice assistant: templates with slots, for many thousand requests."""

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
)

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
    "dish": (
        "an omelette|apple pie|baked potatoes|banana bread|chicken soup|chili|fried rice|"
        "green curry|guacamole|lasagna|lentil soup|mushroom risotto|pancakes|pizza|potato salad|"
        "rice|roast chicken|scrambled eggs|spaghetti|tomato sauce"
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
    "relative": (
        "aunt|best friend|boss|brother|colleague|daughter|father|grandfather|grandmother|husband|"
        "mother|neighbour|sister|son|teacher|wife"
    ),
    "room": "attic|basement|bathroom|bedroom|dining room|garage|hall|kitchen|living room|office",
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
# leave anything else than lists of shopping.
_WEIGHTS = [math.sqrt(fillings(template)) for template in TEMPLATES]


def request(rng: Random) -> str:
    """One request: a template, wide ones more often than narrow ones, with its slots filled."""
    (template,) = rng.choices(TEMPLATES, _WEIGHTS)
    return rng.choice(OPENINGS) + _SLOT.sub(lambda slot: rng.choice(SLOTS[slot[1]]), template)
