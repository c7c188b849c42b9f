/** The microphone: opened in the user's gesture, closed for good when stopped. */

import { WIRE_RATE_HZ } from "./pcm.js";

const CONSTRAINTS = {
  audio: {
    channelCount: { ideal: 1 },
    echoCancellation: true, // or the assistant would hear, and interrupt, itself
    noiseSuppression: true,
    autoGainControl: true,
  },
};

/** Why the microphone cannot be opened, as a `notices.js` key. */
export class MicrophoneError extends Error {
  constructor(notice, cause) {
    super(notice, { cause });
    this.notice = notice;
  }
}

/**
 * One open microphone.  `onFrame({pcm, time, level})` gets every 20 ms of wire PCM, `time` being
 * the context time of its first sample in seconds; `onLost()` is called when the device goes away.
 */
export class Microphone {
  #stream;
  #source;
  #node;

  /** Open it.  Raises `MicrophoneError`. */
  static async open(context, { onFrame, onLost }) {
    if (!navigator.mediaDevices) throw new MicrophoneError("insecure");
    const loaded = context.audioWorklet.addModule(new URL("capture-worklet.js", import.meta.url));
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia(CONSTRAINTS);
    } catch (error) {
      throw new MicrophoneError(noticeFor(error), error);
    }
    await loaded;
    return new Microphone(context, stream, onFrame, onLost);
  }

  constructor(context, stream, onFrame, onLost) {
    this.#stream = stream;
    this.#source = context.createMediaStreamSource(stream);
    this.#node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
    this.#node.port.onmessage = ({ data }) => onFrame(data);
    this.#source.connect(this.#node);
    for (const track of stream.getAudioTracks()) track.onended = onLost;
  }

  /** Release the device; the browser's recording mark goes out. */
  close() {
    this.#node.port.onmessage = null;
    this.#source.disconnect();
    for (const track of this.#stream.getTracks()) {
      track.onended = null;
      track.stop();
    }
  }
}

/**
 * Places the session's audio on the context's clock.  The server counts all samples appended in
 * the session; the microphone may be stopped and started in between, so the count and the clock
 * agree only piecewise.
 */
export class SampleClock {
  #pieces = []; // {first, time}: appended sample `first` was captured at `time`
  #appended = 0;

  /** `count` samples were appended, the first of them captured at `time` (seconds). */
  append(count, time) {
    const last = this.#pieces.at(-1);
    const expected = last && last.time + (this.#appended - last.first) / WIRE_RATE_HZ;
    if (!last || Math.abs(time - expected) > 0.001) {
      this.#pieces.push({ first: this.#appended, time });
    }
    this.#appended += count;
  }

  /** Context time in seconds of the moment `ms` into the appended audio; `null` without audio. */
  timeAt(ms) {
    const sample = (ms / 1000) * WIRE_RATE_HZ;
    const piece = this.#pieces.findLast(({ first }) => first <= sample);
    return piece ? piece.time + (sample - piece.first) / WIRE_RATE_HZ : null;
  }
}

function noticeFor(error) {
  switch (error.name) {
    case "NotAllowedError":
    case "SecurityError":
      return "denied";
    case "NotFoundError":
    case "OverconstrainedError":
      return "noMicrophone";
    default: // NotReadableError, AbortError: another program holds it, or the driver failed
      return "microphoneBusy";
  }
}
