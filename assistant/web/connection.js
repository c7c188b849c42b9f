/** One Realtime conversation over a websocket that comes back by itself. */

import { WIRE_RATE_HZ, toBase64 } from "./pcm.js";

const BACKOFF_MS = [500, 1000, 2000, 4000, 8000];
const MOST_UNSENT_BYTES = 512 * 1024; // about 8 s of microphone; past it the line is as good as dead

/** What the server says on closing, where it means more than that the line is gone. */
const CLOSE_REASONS = {
  server_not_ready: "loading",
  too_many_sessions: "full",
  idle_timeout: "idle",
};

/** What we ask of the server; all else stays as it is configured there. */
function sessionWishes(spoken) {
  if (!spoken) return { type: "realtime", output_modalities: ["text"], x: { events: true } };
  const format = { type: "audio/pcm", rate: WIRE_RATE_HZ };
  return {
    type: "realtime",
    audio: { input: { format }, output: { format } },
    x: { events: true, acknowledge_playback: true },
  };
}

/**
 * Keeps one session open; `spoken` is false if answers can be read here but not played.
 * `onEvent(event)` gets every server event, `onSent(event)` every client
 * event, `onPhase({phase, …})` each change of the line:
 *
 * - `connecting`;
 * - `open`: the session is ours, `resumed` says whether an earlier one was lost;
 * - `waiting` for the next attempt: `reason` is `lost`, `unreachable`, `loading`, `full`, `refused`
 *   or `idle` (then there is no next attempt until `connect` is called).
 */
export class Connection {
  #url;
  #protocols;
  #spoken;
  #handlers;
  #socket = null;
  #timer = null;
  #attempt = 0;
  #sessions = 0;
  #sent = 0;

  constructor({ url, apiKey = null, spoken = true, onEvent, onSent = () => {}, onPhase }) {
    this.#url = url;
    this.#spoken = spoken;
    this.#protocols = apiKey ? ["realtime", `openai-insecure-api-key.${apiKey}`] : ["realtime"];
    this.#handlers = { onEvent, onSent, onPhase };
    this.isOpen = false;
  }

  /** Connect now, without waiting for the next attempt's turn. */
  connect() {
    if (this.#socket) return;
    clearTimeout(this.#timer);
    this.#handlers.onPhase({ phase: "connecting" });
    const socket = new WebSocket(this.#url, this.#protocols);
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ reason }) => this.#closed(reason);
  }

  /**
   * Send a client event; returns its `event_id`, or `null` when there is no session to send it to.
   */
  send(event) {
    if (!this.isOpen) return null;
    const numbered = { event_id: `page_${(this.#sent += 1)}`, ...event };
    this.#socket.send(JSON.stringify(numbered));
    this.#handlers.onSent(numbered);
    return numbered.event_id;
  }

  /** Append microphone audio; `false` if it could not go out and does not count as appended. */
  append(pcm) {
    if (!this.isOpen || this.#socket.bufferedAmount > MOST_UNSENT_BYTES) return false;
    return this.send({ type: "input_audio_buffer.append", audio: toBase64(pcm) }) !== null;
  }

  #receive(event) {
    if (event.type === "session.created") {
      this.isOpen = true;
      this.#attempt = 0;
      this.#sessions += 1;
      this.#handlers.onPhase({ phase: "open", resumed: this.#sessions > 1 });
      this.send({ type: "session.update", session: sessionWishes(this.#spoken) });
    }
    if (this.isOpen) this.#handlers.onEvent(event); // else it is why there will be no session
  }

  async #closed(message) {
    const wasOpen = this.isOpen;
    this.isOpen = false;
    this.#socket = null;
    const known = CLOSE_REASONS[message];
    if (known !== "idle") this.#connectLater();
    const reason = known ?? (wasOpen ? "lost" : await this.#whyRefused());
    if (!this.#socket) this.#handlers.onPhase({ phase: "waiting", reason });
  }

  #connectLater() {
    const pauseMs = BACKOFF_MS[Math.min(this.#attempt, BACKOFF_MS.length - 1)];
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.connect(), pauseMs);
  }

  /** A browser does not tell why a handshake failed; the server's readiness does, roughly. */
  async #whyRefused() {
    const address = new URL("/readyz", this.#url);
    address.protocol = address.protocol.replace("ws", "http");
    try {
      const answer = await fetch(address, { cache: "no-store" });
      return answer.ok ? "refused" : "loading";
    } catch {
      return "unreachable";
    }
  }
}
