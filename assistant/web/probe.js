/**
 * `window.assistantProbe`: what the page did, for tests and for the curious.
 *
 * | member | what |
 * | --- | --- |
 * | `events` | `{direction: "in" \| "out", time, event}`; audio is replaced by its number of bytes |
 * | `inputLevels` | `{time, level}` of each 20 ms microphone frame (root mean square) |
 * | `outputLevels` | `{time, level}` of each 10 ms that went to the loudspeaker |
 * | `playback` | the player's events, without their levels; `player.js` says which there are |
 * | `turns` | `{timeline, measuredTtfaMs}` of each finished turn |
 * | `soundStoppedAt` | when the last answer fell silent: the end of the faded block, or of the answer |
 * | `capturedAt(ms)` | when the sample `ms` into the session's appended audio was captured |
 * | `errors` | server errors and what else went wrong |
 *
 * Every `time` is in seconds on the AudioContext's clock (`null` before there is one).  The lists
 * keep their latest entries only.  Nothing in the page reads them.
 */
export class Probe {
  events = [];
  inputLevels = [];
  outputLevels = [];
  playback = [];
  turns = [];
  errors = [];
  soundStoppedAt = null;
  capturedAt = () => null;
  #now;

  constructor(now) {
    this.#now = now;
  }

  event(direction, event) {
    keep(this.events, { direction, time: this.#now(), event: withoutAudio(event) });
  }

  input({ time, level }) {
    keep(this.inputLevels, { time, level });
  }

  player({ levels = [], ...event }) {
    for (const level of levels) keep(this.outputLevels, level);
    keep(this.playback, event);
    if (event.type === "cut" && event.responseId === null) return;
    if (event.type === "cut" || event.type === "finished") this.soundStoppedAt = event.time;
  }

  turn(turn) {
    keep(this.turns, turn);
  }

  error(error) {
    keep(this.errors, { time: this.#now(), error });
  }
}

const MOST_ENTRIES = 6000;

function keep(list, entry) {
  list.push(entry);
  if (list.length > MOST_ENTRIES) list.splice(0, MOST_ENTRIES / 2);
}

function withoutAudio(event) {
  const field = event.type === "input_audio_buffer.append" ? "audio" : "delta";
  const carriesAudio = field === "audio" || event.type === "response.output_audio.delta";
  return carriesAudio ? { ...event, [field]: Math.floor((event[field].length * 3) / 4) } : event;
}
