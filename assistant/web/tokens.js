/** What was drafted of an answer and what became of it, step by step. */

import { html } from "./dom.js";
import { tokenCounts } from "./statistics.js";

/** `[fate, what it is called, what it means]`, in the order of a step. */
const FATES = [
  ["accepted", "accepted", "drafted, and the model would have said the same"],
  ["rejected", "rejected", "drafted and checked, but the model says something else"],
  ["unverified", "not checked", "drafted, but too unlikely to be worth checking"],
  ["own", "the model's own", "the model's next token; without a drafter, every token"],
];

/** A list of the steps of a turn's answer, with a legend. */
export function tokenView({ steps, steps_left_out: leftOut }) {
  const list = html("ol", { class: "steps" }, ...steps.map(step));
  if (leftOut) list.append(html("li", { class: "more" }, `and ${leftOut} steps more`));
  return html("div", { class: "tokens" }, legend(tokenCounts([{ steps }])), list);
}

/** What became of the tokens of all these answers: a bar, a legend, a sentence. */
export function drafts(counts) {
  if (counts.steps === 0) return [html("p", {}, "No answer yet.")];
  return [bar(counts), legend(counts), html("p", {}, draftSummary(counts))];
}

/** Counts of `tokenCounts` in one line. */
export function draftSummary({ drafted, verified, accepted, rejected, perStep }) {
  const each = `${perStep.toFixed(2)} tokens a step`;
  if (drafted === 0) return `No drafts: the model writes by itself, ${each}.`;
  const share = verified ? `, ${Math.round((100 * accepted) / verified)} % of those checked` : "";
  return `${drafted} drafted, ${verified} checked, ${accepted} accepted${share}, ${rejected} rejected: ${each}.`;
}

function bar(counts) {
  const parts = FATES.filter(([fate]) => counts[fate] > 0).map(([fate]) => {
    const part = html("span", { class: fate });
    part.style.flexGrow = counts[fate];
    return part;
  });
  return html("div", { class: "stack", "aria-hidden": "true" }, ...parts);
}

function legend(counts) {
  const rows = FATES.filter(([fate]) => counts[fate] > 0).map(([fate, name, meaning]) =>
    html("li", { title: meaning }, html("span", { class: `token ${fate}` }, String(counts[fate])), ` ${name}`),
  );
  return html("ul", { class: "legend" }, ...rows);
}

function step(tokens) {
  const names = Object.fromEntries(FATES);
  return html(
    "li", {},
    ...tokens.map(({ fate, text }) =>
      html(
        "span", { class: `token ${fate}`, title: names[fate] },
        visible(text),
        fate === "own" ? null : html("span", { class: "quiet" }, ` (${names[fate]})`),
      ),
    ),
  );
}

/** A token as it can be seen; without its text, a mark for it. */
function visible(text) {
  if (text === undefined || text === null) return "•";
  return text.replaceAll("\n", "↵").replaceAll(/^ | $/g, "\u00a0") || "∅";
}
