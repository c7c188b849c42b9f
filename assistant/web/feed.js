/** The server's records over a websocket that comes back by itself. */

const BACKOFF_MS = [500, 1000, 2000, 4000, 8000];

/**
 * Calls `onRecord(record)` with everything the server tells; after every new connection it begins
 * again with a greeting and what the server remembers.  `onPhase(phase)` hears of `connecting`,
 * `open`, `full` (as many pages are open as may be), `lost` and `refused`; the last three are tried
 * again.
 */
export class Feed {
  #url;
  #protocols;
  #handlers;
  #attempt = 0;

  constructor({ url, apiKey = null, onRecord, onPhase }) {
    this.#url = url;
    this.#protocols = apiKey ? ["realtime", `openai-insecure-api-key.${apiKey}`] : ["realtime"];
    this.#handlers = { onRecord, onPhase };
  }

  /** Connect, and again whenever the connection ends. */
  connect() {
    const { onRecord, onPhase } = this.#handlers;
    const socket = new WebSocket(this.#url, this.#protocols);
    let greeted = false;
    onPhase("connecting");
    socket.onmessage = ({ data }) => {
      const record = JSON.parse(data);
      if (record.type === "error") return; // the close says so, too
      if (!greeted) {
        greeted = true;
        this.#attempt = 0;
        onPhase("open");
      }
      onRecord(record);
    };
    socket.onclose = ({ reason }) => {
      const full = reason === "too_many_dashboards";
      onPhase(full ? "full" : greeted ? "lost" : "refused");
      const pauseMs = BACKOFF_MS[Math.min(this.#attempt, BACKOFF_MS.length - 1)];
      this.#attempt += 1;
      setTimeout(() => this.connect(), pauseMs);
    };
  }
}
