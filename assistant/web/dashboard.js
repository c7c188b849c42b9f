/** The operator's page: what the server tells, as pictures and as text. */

import { byId, html } from "./dom.js";
import { Feed } from "./feed.js";
import { LoadView } from "./load.js";
import { LATENCIES, OUTCOMES, chart, duration, stepsOf, table } from "./moments.js";
import { tally, tokenCounts } from "./statistics.js";
import { draftSummary, drafts, tokenView } from "./tokens.js";
import { showTrends } from "./trends.js";

const PHASES = {
  connecting: "Connecting",
  open: "Live",
  lost: "Connection lost, trying again",
  refused: "Not connected, trying again",
  full: "Waiting for a free place",
};
const REFUSED =
  "The server did not let this page look. If it asks for a key, add #key=… to the address of this page and reload.";
const GUESSES = [
  ["hit", "used: nothing was added"],
  ["miss", "dropped: the user went on"],
  ["none", "not begun"],
];

const turns = []; // the oldest first
let greeting = { transcripts: false, kept_turns: 100 };
let chosen = null; // the turn that is shown; `null` follows the latest
let drawing = false;
const load = new LoadView(byId("load"));

function take(record) {
  if (record.type === "greeting") {
    greeting = record;
    turns.length = 0;
    load.clear();
    const { asr, llm, tts } = record.models;
    byId("models").textContent = `${asr} → ${llm} → ${tts}`;
  } else if (record.type === "load") {
    load.add(record);
  } else if (record.type === "turn") {
    turns.push(record);
    turns.splice(0, turns.length - greeting.kept_turns);
  }
  draw();
}

/** Draw once for all records that come together. */
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    load.show();
    drawTurns();
  });
}

let drawn = ""; // the turns that are shown as they are
function drawTurns() {
  const state = `${turns.map(nameOf)} ${chosen}`;
  if (state === drawn) return;
  drawn = state;
  const heard = turns.filter(({ outcome, timeline }) => timeline.kind === "spoken" && outcome !== "discarded");
  byId("latency-facts").textContent = latencyFacts(heard);
  showTrends(byId("trends"), heard);
  byId("speculation").replaceChildren(...speculation(heard));
  byId("drafts").replaceChildren(...drafts(tokenCounts(turns)));
  byId("no-turns").hidden = turns.length > 0;
  drawList();
}

function latencyFacts(heard) {
  if (heard.length === 0) return "No turn yet.";
  const cutIns = heard.filter((turn) => turn.timeline.cut_in).length;
  return `The last ${heard.length}; lines over 20 turns each. Cut in on the user: ${cutIns}, not counted.`;
}

function speculation(heard) {
  if (heard.length === 0) return [html("p", {}, "No turn yet.")];
  const counts = tally(heard, (turn) => turn.speculation);
  const wasted = heard.reduce((sum, turn) => sum + turn.wasted_tokens, 0);
  const parts = GUESSES.filter(([name]) => counts[name]);
  const bar = html("div", { class: "stack", "aria-hidden": "true" });
  for (const [name] of parts) {
    const part = html("span", { class: name });
    part.style.flexGrow = counts[name];
    bar.append(part);
  }
  const rows = parts.map(([name, meaning]) =>
    html("li", {}, html("span", { class: `key ${name}` }), `${counts[name]} ${name}, ${meaning}`),
  );
  return [bar, html("ul", { class: "legend" }, ...rows), html("p", { class: "facts" }, `${wasted} tokens wasted`)];
}

function drawList() {
  const list = byId("turns");
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  const shown = turns.find((turn) => nameOf(turn) === chosen) ?? turns.at(-1);
  list.replaceChildren(...turns.toReversed().map((turn) => entry(turn, turn === shown)));
  list.querySelector(`[data-name="${focused}"]`)?.focus();
  byId("turn").replaceChildren(...(shown ? details(shown) : []));
}

function entry(turn, isShown) {
  const { timeline, outcome, speculation: guess } = turn;
  const button = html(
    "button", { type: "button", "data-name": nameOf(turn), "aria-current": isShown ? "true" : null },
    html("span", { class: "when" }, new Date(turn.ended_at_s * 1000).toLocaleTimeString()),
    html("span", { class: "what" }, titleOf(turn)),
    html("span", { class: "facts" }, `${OUTCOMES[outcome] ?? outcome}${guess === "none" ? "" : ` · ${guess}`}`),
    html("span", { class: "ttfa" }, duration(timeline.server_ttfa_ms)),
  );
  button.onclick = () => {
    chosen = turn === turns.at(-1) ? null : nameOf(turn);
    draw();
  };
  return html("li", {}, button);
}

function details(turn) {
  const { timeline } = turn;
  const spoken = timeline.kind === "spoken";
  const origin = spoken ? "the end of the user's speech" : "the question";
  const facts = [
    spoken ? "Spoken" : "Typed",
    OUTCOMES[turn.outcome] ?? turn.outcome,
    `speculation: ${turn.speculation}`,
    turn.wasted_tokens ? `${turn.wasted_tokens} tokens wasted` : null,
    timeline.cut_in ? "cut in" : null,
    `session ${turn.session}`,
  ];
  const latencies = LATENCIES.filter(([key]) => Number.isFinite(timeline[key])).map(([key, name, term, meaning]) =>
    html("div", { title: `${term}: ${meaning}` }, html("dt", {}, name), html("dd", {}, duration(timeline[key]))),
  );
  const parts = [
    html("h3", {}, titleOf(turn)),
    html("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    html("dl", { class: "latencies" }, ...latencies),
  ];
  if (stepsOf(timeline).length > 0) parts.push(chart(timeline, origin), table(timeline, origin));
  if (turn.steps.length > 0) {
    parts.push(html("h4", {}, "The answer, token by token"), tokenView(turn));
    parts.push(html("p", { class: "facts" }, draftSummary(tokenCounts([turn]))));
  }
  if (!greeting.transcripts) {
    parts.push(
      html(
        "p", { class: "facts" },
        "What was said is not shown. ", html("code", {}, "[log] transcripts = true"), " in the server's configuration shows it here and in its log.",
      ),
    );
  }
  return parts;
}

function nameOf({ session, turn }) {
  return `${session}-${turn}`;
}

function titleOf({ transcript, session, turn }) {
  return transcript ? `“${transcript}”` : `Turn ${turn} of session ${session.slice(0, 4)}`;
}

function showPhase(phase) {
  document.querySelector(".link").dataset.phase = phase === "open" || phase === "connecting" ? phase : "waiting";
  byId("link-label").textContent = PHASES[phase];
  const notice = byId("notice");
  notice.hidden = phase !== "refused";
  notice.textContent = phase === "refused" ? REFUSED : "";
}

const url = new URL("dashboard/events", location.href);
url.protocol = url.protocol.replace("http", "ws");
url.hash = "";
const apiKey = new URLSearchParams(location.hash.slice(1)).get("key");
new Feed({ url, apiKey, onRecord: take, onPhase: showPhase }).connect();
draw();
