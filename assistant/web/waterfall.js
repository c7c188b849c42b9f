/** Where the time of each turn went: a waterfall, four named latencies, and the same as a table. */

import { html } from "./dom.js";
import { LATENCIES, OUTCOMES, chart, duration, stepsOf, table } from "./moments.js";

const MOST_TURNS = 20;

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
    const origin = spoken ? "the end of your speech" : "the question";
    const kind = spoken ? "Spoken" : "Typed";
    const title = html("h3", {}, transcript ? `“${transcript}”` : `Turn ${number}`);
    const facts = html("p", { class: "facts" }, `${kind} · ${OUTCOMES[outcome] ?? outcome}`);
    if (timeline.cut_in) facts.append(" · ", html("strong", {}, "cut in"));
    const turn = html(
      "article", { class: "turn", "data-turn": number },
      title, facts,
      latencies(timeline, measuredTtfaMs),
      ...(stepsOf(timeline).length > 0 ? [chart(timeline, origin), table(timeline, origin)] : []),
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
