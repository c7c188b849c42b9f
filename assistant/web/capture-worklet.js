/** The microphone, on the audio thread: 20 ms frames of wire PCM, each with its capture time. */

import { WIRE_RATE_HZ, floatToPcm, rms } from "./pcm.js";
import { Resampler } from "./resampler.js";

const FRAME_SAMPLES = (WIRE_RATE_HZ * 20) / 1000;

class Capture extends AudioWorkletProcessor {
  #resampler = new Resampler(sampleRate, WIRE_RATE_HZ);
  #frame = new Float32Array(FRAME_SAMPLES);
  #filled = 0;
  #frames = 0;
  #consumed = 0; // input samples so far

  process([channels]) {
    if (channels.length === 0) return true; // no source connected
    const mono = mixDown(channels);
    // Where input sample 0 would lie on the context's clock: it moves only if blocks were lost.
    const origin = currentFrame - this.#consumed;
    this.#consumed += mono.length;
    for (const sample of this.#resampler.feed(mono)) {
      this.#frame[this.#filled++] = sample;
      if (this.#filled === FRAME_SAMPLES) this.#emit(origin);
    }
    return true;
  }

  #emit(origin) {
    const pcm = floatToPcm(this.#frame);
    const time = origin / sampleRate + (this.#frames * FRAME_SAMPLES) / WIRE_RATE_HZ;
    this.port.postMessage({ pcm, time, level: rms(this.#frame) }, [pcm]);
    this.#frames += 1;
    this.#filled = 0;
  }
}

function mixDown(channels) {
  if (channels.length === 1) return channels[0];
  const mono = new Float32Array(channels[0].length);
  for (const channel of channels) {
    for (let at = 0; at < mono.length; at++) mono[at] += channel[at] / channels.length;
  }
  return mono;
}

registerProcessor("capture", Capture);
