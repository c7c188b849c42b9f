/** Changes the sample rate of a mono stream; the result does not depend on how it was cut. */

const ZERO_CROSSINGS = 16;
const PASSBAND = 0.94; // of the lower Nyquist frequency; the rest is the filter's transition

/**
 * A windowed-sinc polyphase resampler.  Output sample `k` lies exactly at input position
 * `k * fromHz / toHz`: there is no delay to account for, only a few input samples of lookahead.
 */
export class Resampler {
  #up;
  #down;
  #reach; // input samples the filter needs on either side of an output sample
  #phases;
  #pending; // input not yet out of the filter's reach
  #pendingStart; // absolute index of #pending[0]
  #nextOutput = 0;
  #received = 0;

  constructor(fromHz, toHz) {
    const divisor = greatestCommonDivisor(Math.round(fromHz), Math.round(toHz));
    this.#up = Math.round(toHz) / divisor;
    this.#down = Math.round(fromHz) / divisor;
    const cutoff = PASSBAND * Math.min(1, this.#up / this.#down);
    this.#reach = Math.ceil(ZERO_CROSSINGS / cutoff);
    this.#phases = Array.from({ length: this.#up }, (_, phase) =>
      filterPhase(phase / this.#up, this.#reach, cutoff),
    );
    this.#pending = new Float32Array(this.#reach); // silence before the first sample
    this.#pendingStart = -this.#reach;
  }

  /** Take input samples, return those output samples that are determined now. */
  feed(samples) {
    if (this.#up === this.#down) return Float32Array.from(samples);
    const joined = new Float32Array(this.#pending.length + samples.length);
    joined.set(this.#pending);
    joined.set(samples, this.#pending.length);
    this.#received += samples.length;
    return this.#convolve(joined, Number.POSITIVE_INFINITY);
  }

  /** Return the rest of the output; the stream is over. */
  flush() {
    if (this.#up === this.#down) return new Float32Array(0);
    const joined = new Float32Array(this.#pending.length + this.#reach + 1);
    joined.set(this.#pending);
    return this.#convolve(joined, Math.ceil((this.#received * this.#up) / this.#down));
  }

  #convolve(input, endOutput) {
    const end = this.#pendingStart + input.length;
    const last = Math.floor(((end - this.#reach) * this.#up - 1) / this.#down);
    const count = Math.max(0, Math.min(last + 1, endOutput) - this.#nextOutput);
    const output = new Float32Array(count);
    for (let i = 0; i < count; i++) {
      const position = (this.#nextOutput + i) * this.#down;
      const taps = this.#phases[position % this.#up];
      const first = Math.floor(position / this.#up) - this.#reach + 1 - this.#pendingStart;
      let sum = 0;
      for (let tap = 0; tap < taps.length; tap++) sum += taps[tap] * input[first + tap];
      output[i] = sum;
    }
    this.#nextOutput += count;
    const oldestNeeded = Math.floor((this.#nextOutput * this.#down) / this.#up) - this.#reach + 1;
    const spent = Math.min(input.length, Math.max(0, oldestNeeded - this.#pendingStart));
    this.#pending = input.slice(spent);
    this.#pendingStart += spent;
    return output;
  }
}

function filterPhase(fraction, reach, cutoff) {
  const taps = new Float32Array(2 * reach);
  let sum = 0;
  for (let tap = 0; tap < taps.length; tap++) {
    const distance = tap - reach + 1 - fraction;
    const window = Math.cos((Math.PI * distance) / (2 * reach)) ** 2; // Hann
    taps[tap] = Math.abs(distance) < reach ? cutoff * sinc(cutoff * distance) * window : 0;
    sum += taps[tap];
  }
  return taps.map((tap) => tap / sum); // every phase passes a constant unchanged
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
