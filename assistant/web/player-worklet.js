/** The loudspeaker, on the audio thread: wire PCM in, played positions and levels out. */

import { WIRE_RATE_HZ, pcmToFloat, rms } from "./pcm.js";
import { Playout } from "./playout.js";
import { Resampler } from "./resampler.js";

const REPORT_BLOCKS = Math.round((0.05 * sampleRate) / 128); // about every 50 ms
const SILENT_REPORTS = 4; // after the sound, so that the silence is on record too
const STEADY_BLOCKS = 8;
const LEVEL_BLOCKS = Math.round((0.01 * sampleRate) / 128); // a level about every 10 ms

class Player extends AudioWorkletProcessor {
  #playout = new Playout(sampleRate);
  #streams = new Map(); // response id → its audio on the way from the wire's rate to ours
  #blocks = 0;
  #nextFrame = 0; // where the next block lies if the browser leaves none out
  #steadyBlocks = 0; // blocks in a row, up to what is asked for
  #levels = [];
  #silentReports = 0;
  #energy = 0;

  constructor() {
    super();
    this.port.onmessage = ({ data: { type, ...message } }) => this[type](message);
  }

  play({ responseId, generation, startMs, pcm }) {
    let stream = this.#streams.get(responseId);
    if (stream && startMs !== null && Math.abs(startMs - stream.receivedMs) > 1) {
      this.#drain(responseId, stream); // something is missing: go on at the right place
      stream = undefined;
    }
    if (!stream) {
      const receivedMs = startMs ?? 0;
      stream = {
        generation,
        receivedMs,
        start: Math.round((receivedMs / 1000) * sampleRate),
        resampler: new Resampler(WIRE_RATE_HZ, sampleRate),
      };
      this.#streams.set(responseId, stream);
    }
    const samples = pcmToFloat(pcm);
    stream.receivedMs += (samples.length / WIRE_RATE_HZ) * 1000;
    this.#push(responseId, stream, stream.resampler.feed(samples));
  }

  end({ responseId }) {
    const stream = this.#streams.get(responseId);
    if (!stream) return;
    this.#drain(responseId, stream);
    this.#playout.end(responseId);
  }

  flush() {
    this.#streams.clear();
    this.#playout.flush();
  }

  clear({ generation }) {
    this.#playout.clearThrough(generation);
  }

  reset() {
    this.#streams.clear();
    this.#playout.reset();
  }

  process(_inputs, [[output]]) {
    this.#watchClock(output.length);
    // A young context leaves blocks out once it gets going; sound given to it before that is lost.
    if (this.#steadyBlocks === STEADY_BLOCKS) this.#playout.render(output);
    this.#measure(output);
    this.#reportEvents();
    this.#blocks += 1;
    if (this.#blocks % REPORT_BLOCKS === 0) this.#reportProgress();
    return true;
  }

  #watchClock(blockFrames) {
    const skipped = currentFrame - this.#nextFrame;
    this.#nextFrame = currentFrame + blockFrames;
    if (this.#steadyBlocks < STEADY_BLOCKS) {
      this.#steadyBlocks = skipped === 0 ? this.#steadyBlocks + 1 : 0;
    } else if (skipped > 0 && this.#playout.playing) {
      const { responseId } = this.#playout.current;
      const gapMs = (skipped / sampleRate) * 1000;
      this.port.postMessage({ type: "skip", responseId, time: currentFrame / sampleRate, gapMs });
    }
  }

  #drain(responseId, stream) {
    this.#push(responseId, stream, stream.resampler.flush());
    this.#streams.delete(responseId);
  }

  #push(responseId, stream, samples) {
    this.#playout.push({ responseId, generation: stream.generation, start: stream.start, samples });
    stream.start += samples.length;
  }

  #measure(output) {
    this.#energy += rms(output) ** 2;
    if ((this.#blocks + 1) % LEVEL_BLOCKS !== 0) return;
    const level = Math.sqrt(this.#energy / LEVEL_BLOCKS);
    this.#energy = 0;
    this.#levels.push({ time: this.#nextFrame / sampleRate, level });
  }

  #reportEvents() {
    for (const { frame, position, gap, ...event } of this.#playout.events) {
      this.port.postMessage({
        ...event,
        time: (currentFrame + frame) / sampleRate,
        positionMs: (position / sampleRate) * 1000,
        gapMs: gap && (gap / sampleRate) * 1000,
        underruns: this.#playout.underruns,
        targetMs: this.#playout.targetMs,
      });
    }
    this.#playout.events.length = 0;
  }

  #reportProgress() {
    const levels = this.#levels;
    this.#levels = [];
    this.#silentReports = this.#playout.playing ? 0 : this.#silentReports + 1;
    if (this.#silentReports > SILENT_REPORTS) return;
    const { current } = this.#playout; // one that ran dry has its place too
    this.port.postMessage({
      type: "progress",
      responseId: current?.started ? current.responseId : null,
      time: this.#nextFrame / sampleRate,
      positionMs: ((current?.position ?? 0) / sampleRate) * 1000,
      levels,
    });
  }
}

registerProcessor("player", Player);
