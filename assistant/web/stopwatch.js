/** How long the user waited, on the audio clock: last sample spoken → first sample heard. */

/**
 * Times are context seconds.  A question (spoken or typed) is asked at a moment; the next response
 * answers it; the response becomes audible at a moment.
 */
export class Stopwatch {
  #asked = null;
  #answers = new Map(); // response id → {asked, ttfaMs}

  /** The user's question ended at `time`; `null` if that is not known. */
  asked(time) {
    this.#asked = time;
  }

  /** This response answers the last question. */
  answering(responseId) {
    this.#answers.set(responseId, { asked: this.#asked, ttfaMs: null });
    this.#asked = null;
  }

  /** The response's first audible sample leaves the loudspeaker at `time`. */
  audible(responseId, time) {
    const answer = this.#answers.get(responseId);
    if (!answer || answer.asked === null) return;
    answer.ttfaMs = (time - answer.asked) * 1000;
  }

  /** Milliseconds from the question's end to the first audible sample; `null` if not known. */
  ttfaMs(responseId) {
    return this.#answers.get(responseId)?.ttfaMs ?? null;
  }
}
