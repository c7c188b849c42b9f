/** The four latencies over the last turns: one small picture each. */

import { html, svg } from "./dom.js";
import { LATENCIES, duration } from "./moments.js";
import { quantile, rolling } from "./statistics.js";

const WIDTH = 20; // turns that a point of the lines looks back on
const HEIGHT = 64; // pixels
const ROUND_MS = [50, 100, 200, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 10_000, 30_000];

/** Show how each latency developed over `turns`, the oldest first. */
export function showTrends(element, turns) {
  element.replaceChildren(...LATENCIES.map((latency) => trend(latency, turns)));
}

function trend([key, name, term, meaning], turns) {
  const values = turns.map((turn) => turn.timeline[key]).filter(Number.isFinite);
  const [p50, p90, p99] = [0.5, 0.9, 0.99].map((share) => duration(quantile(values, share)));
  return html(
    "figure", { class: "trend", title: `${term}: ${meaning}` },
    html("figcaption", {}, html("strong", {}, name), html("span", {}, term)),
    html(
      "dl", {},
      html("div", { class: "p50" }, html("dt", {}, "p50"), html("dd", {}, p50)),
      html("div", { class: "p90" }, html("dt", {}, "p90"), html("dd", {}, p90)),
      html("div", {}, html("dt", {}, "p99"), html("dd", {}, p99)),
    ),
    picture(values, `${name}, the last ${values.length} turns: p50 ${p50}, p90 ${p90}.`),
  );
}

function picture(values, label) {
  const highest = Math.max(0, ...values);
  const top = ROUND_MS.find((ms) => ms >= highest) ?? highest;
  const x = (at) => (values.length < 2 ? 50 : (100 * at) / (values.length - 1)).toFixed(2);
  const y = (ms) => (HEIGHT - (HEIGHT * Math.max(0, ms)) / top).toFixed(1);
  const line = (share, name) =>
    svg("polyline", {
      class: name,
      points: rolling(values, share, WIDTH).map((ms, at) => `${x(at)},${y(ms)}`).join(" "),
    });
  const plot = svg(
    "svg",
    { viewBox: `0 0 100 ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { class: "grid", x1: 0, x2: 100, y1: 0, y2: 0 }),
    svg("line", { class: "grid", x1: 0, x2: 100, y1: HEIGHT, y2: HEIGHT }),
    ...values.map((ms, at) => svg("line", { class: "dot", x1: x(at), x2: x(at), y1: y(ms), y2: y(ms) })),
    line(0.9, "p90"),
    line(0.5, "p50"),
  );
  return html(
    "div", { class: "picture", role: "img", "aria-label": label },
    plot,
    html("span", { class: "top" }, values.length ? duration(top) : ""),
    html("span", { class: "bottom" }, "0"),
  );
}
