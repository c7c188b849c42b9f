/** How busy the server is: now, and over the last two minutes. */

import { html, svg } from "./dom.js";

const KEPT = 120; // records, as many seconds
const HEIGHT = 32;

/** What waits: `[worker, urgency, words for it]`. */
const QUEUES = [
  ["hearing", "hearing", "Voice activity"],
  ["asr", "partial", "Words while the user speaks"],
  ["asr", "guess", "Words at a pause"],
  ["asr", "final", "Words of a turn that is over"],
  ["llm", undefined, "Answers, for a slot of the engine"],
  ["tts", "guess", "First clause, begun at a pause"],
  ["tts", "first_clause", "First clause of an answer"],
  ["tts", "later_clause", "Later clauses"],
];

/** Collects the records of the server's load and shows them in `element`. */
export class LoadView {
  #element;
  #loads = [];

  constructor(element) {
    this.#element = element;
  }

  /** Forget everything: the server tells it again. */
  clear() {
    this.#loads = [];
  }

  add(load) {
    this.#loads = [...this.#loads, load].slice(-KEPT);
  }

  show() {
    const latest = this.#loads.at(-1);
    if (!latest) return;
    const lags = this.#loads.map((load) => load.lag_ms).filter(Number.isFinite);
    const worst = Math.max(0, ...lags);
    this.#element.replaceChildren(
      html(
        "dl", { class: "facts-now" },
        html("div", {}, html("dt", {}, "Sessions"), html("dd", { id: "sessions" }, String(latest.sessions))),
        html(
          "div", {},
          html("dt", {}, "Event loop, late by at most"),
          html("dd", {}, ms(latest.lag_ms), html("small", {}, `${ms(worst)} in ${this.#loads.length} s`)),
        ),
      ),
      sparkline(lags, worst),
      queueTable(this.#loads),
    );
  }
}

function sparkline(values, top) {
  const points = values.map((value, at) => {
    const x = (100 * (KEPT - values.length + at + 1)) / KEPT;
    return `${x.toFixed(2)},${(HEIGHT - (HEIGHT * value) / Math.max(top, 1)).toFixed(1)}`;
  });
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 100 ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { class: "grid", x1: 0, x2: 100, y1: HEIGHT, y2: HEIGHT }),
    svg("polyline", { points: points.join(" ") }),
  );
}

/** Every kind of job that came in the time that is kept, the known ones first. */
function queueTable(loads) {
  const kinds = new Map(QUEUES.map(([worker, urgency, words]) => [`${worker} ${urgency}`, { words, records: [] }]));
  for (const record of loads.flatMap((load) => load.queues)) {
    const key = `${record.worker} ${record.urgency}`;
    const words = `${record.worker}, ${(record.urgency ?? "").replaceAll("_", " ")}`;
    if (!kinds.has(key)) kinds.set(key, { words, records: [] });
    kinds.get(key).records.push(record);
  }
  const rows = [...kinds.values()].map(({ words, records }) => {
    const jobs = records.reduce((sum, { jobs: each }) => sum + each, 0);
    const mean = records.reduce((sum, { jobs: each, mean_ms: at }) => sum + each * at, 0) / jobs;
    const longest = records.map((record) => record.longest_ms).filter(Number.isFinite);
    return html(
      "tr", {},
      html("th", { scope: "row" }, words),
      html("td", {}, String(jobs)),
      html("td", {}, jobs ? ms(mean) : "–"),
      html("td", {}, longest.length ? ms(Math.max(...longest)) : "–"),
    );
  });
  const head = ["Waited for their worker", "Jobs", "Mean", "Longest"].map((name) => html("th", { scope: "col" }, name));
  return html(
    "table", {},
    html("caption", {}, `Over the last ${loads.length} s`),
    html("thead", {}, html("tr", {}, ...head)),
    html("tbody", {}, ...rows),
  );
}

function ms(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
}
