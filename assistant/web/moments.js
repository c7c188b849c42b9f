/** The moments of a turn, and pictures of them: what each step waited for, when it was done. */

import { html, svg } from "./dom.js";

const ROW = 24; // pixels, as `.names` and `.values` in the style sheet
const AXIS = 18;

/** The steps from the speech end to the ear: `[moment, short name, what it means]`. */
const STEPS = [
  ["pause_ms", "Pause", "The silence was long enough to begin the answer on a guess"],
  ["transcript_ms", "Transcript", "The words were recognised"],
  ["first_text_ms", "First text", "The model wrote its first words"],
  ["first_chunk_ms", "First clause", "The first clause went to the voice"],
  ["first_audio_ms", "First audio", "The voice made its first samples"],
  ["endpoint_ms", "Endpoint", "The turn was decided to be over"],
  ["first_sent_ms", "Sent", "The first audio left the server"],
  ["first_heard_ms", "Heard", "The first sample sounded at the client"],
];

/** What a step waited for, as far as that came before it: the endpoint opens the gate. */
const AFTER = {
  pause_ms: [],
  endpoint_ms: [],
  transcript_ms: ["pause_ms", "endpoint_ms"],
  first_text_ms: ["transcript_ms"],
  first_chunk_ms: ["first_text_ms"],
  first_audio_ms: ["first_chunk_ms"],
  first_sent_ms: ["endpoint_ms", "first_audio_ms"],
  first_heard_ms: ["first_sent_ms"],
};

/** `[latency, what it is called here, what the field calls it, what it means]`. */
export const LATENCIES = [
  ["endpoint_wait_ms", "Silence awaited", "endpoint wait", "from the end of the speech until the turn counted as over"],
  ["added_latency_ms", "Work after it", "added latency", "what the work behind the endpoint added to the wait"],
  ["server_ttfa_ms", "Answer sent", "server TTFA (time to first audio)", "from the end of the speech until the first audio left the server"],
  ["client_ttfa_ms", "Answer heard", "client TTFA (time to first audio)", "from the end of the speech until the first audio sounded at the client"],
];

export const OUTCOMES = {
  done: "heard to the end",
  interrupted: "interrupted",
  failed: "failed",
  discarded: "no words",
};

/** The steps that have a moment in this timeline. */
export function stepsOf(timeline) {
  const spoken = timeline.kind === "spoken";
  return STEPS.filter(
    ([moment]) => typeof timeline[moment] === "number" && (spoken || moment !== "endpoint_ms"),
  );
}

/**
 * A bar for each step, from when it could begin until it was done; `origin` says in words what all
 * moments count from.  Labels and values stand beside the plot, so that text keeps its size at any
 * width.
 */
export function chart(timeline, origin) {
  const steps = stepsOf(timeline);
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
    { class: "chart", role: "img", "aria-label": `After ${origin}: ${summary}.` },
    column("names", steps.map(([, name]) => name)),
    plot,
    column("values", steps.map(([moment]) => String(Math.round(timeline[moment])))),
  );
}

/** When a step could begin: everything that it waited for was there. */
function begin(moment, timeline) {
  const ms = timeline[moment];
  const waited = AFTER[moment].map((before) => timeline[before]).filter((before) => Number.isFinite(before) && before <= ms);
  return Math.min(ms, Math.max(0, ...waited));
}

/** The same as a table that can be unfolded. */
export function table(timeline, origin) {
  const rows = stepsOf(timeline).map(([moment, name, meaning]) => {
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
  const caption = html("caption", {}, `In milliseconds; “at” counts from ${origin}`);
  return html(
    "details", {},
    html("summary", {}, "As a table"),
    html("table", {}, caption, html("thead", {}, head), html("tbody", {}, ...rows)),
  );
}

function ticksUpTo(end) {
  const step = [25, 50, 100, 200, 500, 1000, 2000, 5000].find((ms) => end / ms <= 5) ?? 10_000;
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

function label(ms) {
  return ms >= 1000 ? `${ms / 1000} s` : `${ms}`;
}

/** Milliseconds in words. */
export function duration(ms) {
  return typeof ms === "number" ? `${Math.round(ms)} ms` : "–";
}
