/** Where the time of each turn went: a waterfall, four named latencies, and the same as a table. */

import { html, svg } from "./dom.js";

const MOST_TURNS = 20;
const ROW = 24; // pixels, as `.names` and `.values` in the style sheet
const AXIS = 18;

/** The steps from the speech end to the ear: `[moment, short name, what it means]`. */
const STEPS = [
  ["endpoint_ms", "Endpoint", "The turn was decided to be over"],
  ["transcript_ms", "Transcript", "The words were recognised"],
  ["first_text_ms", "First text", "The model wrote its first words"],
  ["first_chunk_ms", "First clause", "The first clause went to the voice"],
  ["first_audio_ms", "First audio", "The voice made its first samples"],
  ["first_sent_ms", "Sent", "The first audio left the server"],
  ["first_heard_ms", "Heard", "The first sample sounded here"],
];

/** What a step waited for. The work may be done before the endpoint, which opens the gate. */
const AFTER = {
  endpoint_ms: [],
  transcript_ms: [],
  first_text_ms: ["transcript_ms"],
  first_chunk_ms: ["first_text_ms"],
  first_audio_ms: ["first_chunk_ms"],
  first_sent_ms: ["endpoint_ms", "first_audio_ms"],
  first_heard_ms: ["first_sent_ms"],
};

/** `[latency, what it is called here, what the field calls it, what it means]`. */
const LATENCIES = [
  ["endpoint_wait_ms", "Silence awaited", "endpoint wait", "from the end of your speech until the turn counted as over"],
  ["added_latency_ms", "Work after it", "added latency", "what the work behind the endpoint added to the wait"],
  ["server_ttfa_ms", "Answer sent", "server TTFA (time to first audio)", "from the end of your speech until the first audio left the server"],
  ["client_ttfa_ms", "Answer heard", "client TTFA (time to first audio)", "from the end of your speech until the first audio sounded here"],
];

const OUTCOMES = {
  done: "heard to the end",
  interrupted: "interrupted",
  failed: "failed",
  discarded: "no words",
};

/** The list of turns, newest first. */
export class Waterfall {
  #list;
  #empty;

  constructor({ list, empty }) {
    this.#list = list;
    this.#empty = empty;
  }

  /** Add a turn from `x.turn.timeline`; `measuredTtfaMs` is the page's own, on the audio clock. */
  add({ turn_id: number, outcome, timeline, transcript }, measuredTtfaMs) {
    this.#empty.hidden = true;
    const spoken = timeline.kind === "spoken";
    const steps = STEPS.filter(
      ([moment]) => typeof timeline[moment] === "number" && (spoken || moment !== "endpoint_ms"),
    );
    const kind = spoken ? "Spoken" : "Typed";
    const title = html("h3", {}, transcript ? `“${transcript}”` : `Turn ${number}`);
    const facts = html("p", { class: "facts" }, `${kind} · ${OUTCOMES[outcome] ?? outcome}`);
    if (timeline.cut_in) facts.append(" · ", html("strong", {}, "cut in"));
    const turn = html(
      "article", { class: "turn", "data-turn": number },
      title, facts,
      latencies(timeline, measuredTtfaMs),
      ...(steps.length > 0 ? [chart(steps, timeline), table(steps, timeline)] : []),
    );
    this.#list.prepend(turn);
    while (this.#list.children.length > MOST_TURNS) this.#list.lastElementChild.remove();
  }
}

function latencies(timeline, measuredTtfaMs) {
  const list = html("dl", { class: "latencies" });
  for (const [key, name, term, meaning] of LATENCIES) {
    if (key === "endpoint_wait_ms" && timeline.kind !== "spoken") continue;
    const value = html("dd", {}, duration(timeline[key]));
    if (key === "client_ttfa_ms" && measuredTtfaMs !== null) {
      const title = "by the clock of microphone and loudspeaker, to the first audible sample";
      value.append(html("small", { title }, `${duration(measuredTtfaMs)} by this page's clock`));
    }
    list.append(html("div", { title: `${term}: ${meaning}` }, html("dt", {}, name), value));
  }
  return list;
}

/** Labels and values stand beside the plot, so that text keeps its size at any width. */
function chart(steps, timeline) {
  const end = Math.max(100, ...steps.map(([moment]) => timeline[moment]));
  const ticks = ticksUpTo(end);
  const at = (ms) => `${((100 * Math.max(0, ms)) / end).toFixed(2)}%`;
  const height = steps.length * ROW;

  const plot = svg("svg", { class: "plot", height: height + AXIS, "aria-hidden": "true" });
  for (const tick of ticks) {
    plot.append(
      svg("line", { class: "grid", x1: at(tick), x2: at(tick), y1: 0, y2: height }),
      svg("text", { class: "tick", x: at(tick), y: height + 14 }, label(tick)),
    );
  }
  for (const [row, [moment]] of steps.entries()) {
    const ms = timeline[moment];
    const start = begin(moment, timeline);
    const width = Math.max(ms - start, end / 150); // or an instant would be invisible
    plot.append(
      svg("rect", {
        class: `bar ${moment.replace(/_ms$/, "")}`,
        x: at(Math.min(start, end - width)), width: at(width),
        y: row * ROW + ROW / 2 - 5, height: 10, rx: 2,
      }),
    );
  }
  const column = (name, texts) =>
    html("div", { class: name }, ...texts.map((text) => html("span", {}, text)));
  const summary = steps.map(([moment, name]) => `${name} ${duration(timeline[moment])}`).join(", ");
  return html(
    "div",
    { class: "chart", role: "img", "aria-label": `After ${origin(timeline)}: ${summary}.` },
    column("names", steps.map(([, name]) => name)),
    plot,
    column("values", steps.map(([moment]) => String(Math.round(timeline[moment])))),
  );
}

/** When a step could begin: everything that it waited for was there. */
function begin(moment, timeline) {
  const ms = timeline[moment];
  const waited = AFTER[moment].map((before) => timeline[before]).filter(Number.isFinite);
  // Words that came after the endpoint were asked for there.
  if (moment === "transcript_ms" && ms > timeline.endpoint_ms) waited.push(timeline.endpoint_ms);
  return Math.min(ms, Math.max(0, ...waited));
}

function table(steps, timeline) {
  const rows = steps.map(([moment, name, meaning]) => {
    const ms = timeline[moment];
    const since = ms - begin(moment, timeline);
    return html(
      "tr", {},
      html("th", { scope: "row" }, name, html("span", { class: "meaning" }, meaning)),
      html("td", {}, ms.toFixed(0)),
      html("td", {}, since.toFixed(0)),
    );
  });
  const head = html(
    "tr", {},
    html("th", { scope: "col" }, "Step"),
    html("th", { scope: "col" }, "At"),
    html("th", { scope: "col" }, "Took"),
  );
  const caption = html("caption", {}, `In milliseconds; “at” counts from ${origin(timeline)}`);
  return html(
    "details", {},
    html("summary", {}, "As a table"),
    html("table", {}, caption, html("thead", {}, head), html("tbody", {}, ...rows)),
  );
}

/** What all moments count from. */
function origin(timeline) {
  return timeline.kind === "spoken" ? "the end of your speech" : "the question";
}

function ticksUpTo(end) {
  const step = [25, 50, 100, 200, 500, 1000, 2000, 5000].find((ms) => end / ms <= 5) ?? 10_000;
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

function label(ms) {
  return ms >= 1000 ? `${ms / 1000} s` : `${ms}`;
}

function duration(ms) {
  return typeof ms === "number" ? `${Math.round(ms)} ms` : "–";
}
