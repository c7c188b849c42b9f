/** One glance: is it listening, thinking or speaking?  By shape, word and motion, not by colour. */

const STATES = {
  offline: { label: "Not connected", hint: "Waiting for a connection." },
  ready: { label: "Ready", hint: "Type, or start the microphone." },
  readyDeaf: { label: "Ready", hint: "Type your question." },
  listening: { label: "Listening", hint: "Speak when you like." },
  hearing: { label: "Hearing you", hint: "Go on." },
  thinking: { label: "Thinking", hint: "One moment." },
  speaking: { label: "Speaking", hint: "Escape stops it." },
  speakingOpen: { label: "Speaking", hint: "Talk over it to interrupt." },
};
const BAR_SHAPE = [0.55, 0.8, 1, 0.8, 0.55];

/** Draws the state, and says it in the status line, which screen readers announce. */
export class Presence {
  #root;
  #label;
  #hint;
  #bars;
  #level = 0;

  constructor({ root, label, hint }) {
    this.#root = root;
    this.#label = label;
    this.#hint = hint;
    this.#bars = [...root.querySelectorAll(".bars path")];
  }

  /**
   * Derive the state from what is known, strongest claim first.  `microphone` is whether it is on,
   * `deaf` whether there is none that could be started.
   */
  show({ connected, microphone, deaf, userSpeaking, thinking, speaking }) {
    let state = microphone ? "listening" : "ready";
    if (!connected) state = "offline";
    else if (speaking) state = "speaking";
    else if (userSpeaking) state = "hearing";
    else if (thinking) state = "thinking";
    let said = state;
    if (state === "speaking" && microphone) said = "speakingOpen";
    if (state === "ready" && deaf) said = "readyDeaf";
    const { label, hint } = STATES[said];
    this.#root.dataset.state = state;
    // Only what changed is written, or a screen reader would announce the same words again.
    if (this.#label.textContent !== label) this.#label.textContent = label;
    if (this.#hint.textContent !== hint) this.#hint.textContent = hint;
  }

  /** The microphone's or loudspeaker's level (root mean square) moves the bars. */
  level(rms) {
    const decibels = 20 * Math.log10(Math.max(rms, 1e-5));
    const loudness = Math.max(0, Math.min(1, (decibels + 55) / 45));
    this.#level = Math.max(loudness, this.#level * 0.8);
    for (const [at, bar] of this.#bars.entries()) {
      bar.style.setProperty("--scale", (0.3 + 0.9 * this.#level * BAR_SHAPE[at]).toFixed(2));
    }
  }
}
