/** The loudspeaker, as the page sees it. */

/**
 * Plays answers through a worklet.  Everything may be called at once after construction; what
 * comes before the worklet is loaded waits for it, in order.
 *
 * `onEvent` gets `{type, responseId, time, positionMs, …}`: `started`, `audible`, `progress`
 * (every 50 ms, with `levels`), `underrun` (audio came too late), `skip` (the browser did: it left
 * out `gapMs`), `finished`, `cut`.  `time` is on the context's clock in seconds, `positionMs` counts
 * from the start of that answer's audio.
 */
export class Player {
  /** `{responseId, positionMs}` of the answer that sounds; `null` in silence. */
  playing = null;
  #context;
  #onEvent;
  #node = null;
  #waiting = []; // messages for a worklet that is not there yet
  #stops = []; // resolvers of the stops under way

  constructor(context, onEvent) {
    this.#context = context;
    this.#onEvent = onEvent;
    this.ready = this.#load();
  }

  /** Queue wire PCM (an `ArrayBuffer`, given away).  `startMs` and `generation` may be `null`. */
  play({ responseId, generation, startMs, pcm }) {
    this.#post({ type: "play", responseId, generation, startMs, pcm }, [pcm]);
  }

  /** No more audio of this answer will come. */
  end(responseId) {
    this.#post({ type: "end", responseId });
  }

  /**
   * Stop within one render quantum.  Resolves to `{responseId, positionMs, time}`, exactly where
   * the sound broke off, or to `null` if nothing was there to stop (or another stop came first).
   */
  flush() {
    return this.#stop({ type: "flush" });
  }

  /** Stop `generation` and older ones, also what of them still arrives.  Resolves like `flush`. */
  clear(generation) {
    return this.#stop({ type: "clear", generation });
  }

  /** Stop everything: a new session begins. */
  reset() {
    this.#post({ type: "reset" });
  }

  async #load() {
    await this.#context.audioWorklet.addModule(new URL("player-worklet.js", import.meta.url));
    this.#node = new AudioWorkletNode(this.#context, "player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
    });
    this.#node.port.onmessage = ({ data }) => this.#receive(data);
    this.#node.connect(this.#context.destination);
    for (const [message, transfer] of this.#waiting) this.#node.port.postMessage(message, transfer);
    this.#waiting = [];
  }

  #stop(message) {
    const cut = new Promise((resolve) => this.#stops.push(resolve));
    this.#post(message);
    // A suspended context renders nothing, so its worklet would never answer.
    if (this.#context.state !== "running" || !this.#node) this.#stopped(this.playing);
    return cut;
  }

  #post(message, transfer = []) {
    if (this.#node) this.#node.port.postMessage(message, transfer);
    else this.#waiting.push([message, transfer]);
  }

  #receive(event) {
    const { type, responseId, positionMs } = event;
    if (type === "cut" || type === "finished") this.playing = null;
    else if (responseId !== null && positionMs !== undefined) this.playing = { responseId, positionMs };
    if (type === "cut") this.#stopped(responseId === null ? null : event);
    this.#onEvent(event);
  }

  #stopped(cut) {
    const [first, ...others] = this.#stops.splice(0);
    first?.(cut);
    for (const resolve of others) resolve(null);
  }
}
