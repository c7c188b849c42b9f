/** The conversation as it is heard: what was said, and how much of an answer reached the user. */

import { html } from "./dom.js";

const FIRST_CHARACTERS_PER_MS = 0.0155; // until an answer has shown how fast the voice speaks

/**
 * Live captions.  An answer's words turn from "not yet heard" to "heard" while they sound: the
 * server does not say when each word sounds, so until an answer is over its place is estimated
 * from the played position; `settle` puts the exact cut in its place.
 */
export class Captions {
  #list;
  #scroll;
  #welcome;
  #entries = new Map(); // item id → entry
  #charactersPerMs = FIRST_CHARACTERS_PER_MS;

  constructor({ list, scroll, welcome }) {
    this.#list = list;
    this.#scroll = scroll;
    this.#welcome = welcome;
  }

  /** The user began to speak; the words follow. */
  userBegan(itemId) {
    const entry = this.#entry(itemId, "user");
    entry.element.dataset.pending = "true";
    this.#draw(entry);
  }

  /** The user's words so far, while they are still being said; they may change. */
  userSays(itemId, text) {
    const entry = this.#entry(itemId, "user");
    entry.text = text;
    entry.soFar = true;
    this.#draw(entry);
  }

  /** More of the user's words, before they are final. */
  userHeard(itemId, delta) {
    const entry = this.#entry(itemId, "user");
    if (entry.soFar) entry.text = "";
    entry.soFar = false;
    entry.text += delta;
    this.#draw(entry);
  }

  /** The user's words, final; `null` if they could not be recognised. */
  userSaid(itemId, text) {
    const entry = this.#entry(itemId, "user");
    delete entry.element.dataset.pending;
    entry.text = text ?? "(not understood)";
    this.#draw(entry);
  }

  /** A sound that was no speech, or a deleted item: nothing was said. */
  remove(itemId) {
    this.#entries.get(itemId)?.element.remove();
    this.#entries.delete(itemId);
  }

  /** An answer begins. */
  assistantBegan(itemId) {
    this.#draw(this.#entry(itemId, "assistant"));
  }

  /** More of the answer's text; `spoken` is false for an answer that is only written. */
  assistantWrote(itemId, delta, spoken) {
    const entry = this.#entry(itemId, "assistant");
    entry.text += delta;
    if (!spoken) entry.heard = entry.text.length;
    this.#draw(entry);
  }

  /** `ms` more of the answer's audio arrived. */
  assistantVoiced(itemId, ms) {
    this.#entry(itemId, "assistant").audioMs += ms;
  }

  /** The answer's text and audio are whole. */
  assistantDone(itemId) {
    const entry = this.#entry(itemId, "assistant");
    entry.whole = true;
    if (entry.audioMs > 1000) this.#charactersPerMs = entry.text.length / entry.audioMs;
    this.#draw(entry);
  }

  /** The loudspeaker is `ms` into the answer's audio. */
  played(itemId, ms) {
    const entry = this.#entries.get(itemId);
    if (!entry || entry.settled) return;
    const rate = entry.whole ? entry.text.length / entry.audioMs : this.#charactersPerMs;
    // Never backwards: what was shown as heard once stays so while the estimate gets better.
    entry.heard = Math.max(entry.heard, wordEnd(entry.text, rate * ms));
    this.#draw(entry);
  }

  /** The answer was played to its end. */
  finished(itemId) {
    const entry = this.#entries.get(itemId);
    if (!entry || entry.settled) return;
    entry.heard = entry.text.length;
    this.#draw(entry);
  }

  /** The answer was broken off; what was not heard is struck out. */
  interrupted(itemId) {
    const entry = this.#entries.get(itemId);
    if (!entry) return;
    entry.cut = true;
    this.#draw(entry);
  }

  /** The server says which part of the answer was heard, as text. */
  settle(itemId, heard, interrupted) {
    const entry = this.#entries.get(itemId);
    if (!entry) return;
    entry.settled = true;
    entry.heard = commonPrefix(entry.text, heard ?? "");
    entry.cut = interrupted || entry.heard < entry.text.trimEnd().length;
    this.#draw(entry);
  }

  /** The answer failed; an apology may sound in its place. */
  failed(itemId, message) {
    this.#remark(itemId, "remark", message);
  }

  /** The answer ends before its thought does, and not because anybody interrupted it. */
  cutShort(itemId, message = "Cut short: the answer was not completed.") {
    this.#remark(itemId, "remark aside", message);
  }

  /** A line across the conversation: what is above it is not remembered. */
  divide(text) {
    if (!this.#list.lastElementChild?.matches(".caption")) return; // nothing to divide off
    this.#entries.clear();
    this.#list.append(html("li", { class: "divider" }, html("span", {}, text)));
    this.#follow();
  }

  #remark(itemId, kind, message) {
    this.#entry(itemId, "assistant").element.append(html("p", { class: kind }, message));
    this.#follow();
  }

  #entry(itemId, role) {
    const known = this.#entries.get(itemId);
    if (known) return known;
    this.#welcome.hidden = true;
    const words = html("p", { class: "words" });
    const who = html("span", { class: "who" }, role === "user" ? "You" : "Assistant");
    const element = html("li", { class: `caption ${role}`, "data-item": itemId }, who, words);
    const entry = {
      role, element, words,
      text: "", heard: 0, audioMs: 0,
      whole: false, cut: false, settled: false,
    };
    this.#entries.set(itemId, entry);
    this.#list.append(element);
    return entry;
  }

  #draw(entry) {
    const { role, words, text, cut } = entry;
    const pinned = this.#isAtEnd();
    if (role === "user") {
      words.replaceChildren(text || html("span", { class: "typing", "aria-label": "speaking" }, "…"));
    } else {
      const heard = text.slice(0, entry.heard);
      const rest = text.slice(entry.heard);
      words.replaceChildren(
        html("span", { class: "heard" }, heard),
        ...(cut ? struck(rest) : [html("span", { class: "ahead" }, rest)]),
      );
      entry.element.classList.toggle("cut", cut);
    }
    if (pinned) this.#follow();
  }

  #isAtEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroll;
    return scrollHeight - scrollTop - clientHeight < 48;
  }

  #follow() {
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }
}

function struck(text) {
  const words = text.trimStart();
  if (words === "") return [];
  const note = html("span", { class: "quiet" }, "(not heard:) ");
  return [" ", html("s", { class: "unheard" }, note, words)];
}

/** The end of the last word of `text` that ends within its first `count` characters. */
function wordEnd(text, count) {
  if (count >= text.length) return text.length;
  const end = text.slice(0, Math.floor(count) + 1).search(/\s+\S*$/);
  return Math.max(0, end);
}

function commonPrefix(text, other) {
  let length = 0;
  while (length < text.length && text[length] === other[length]) length += 1;
  return length;
}
