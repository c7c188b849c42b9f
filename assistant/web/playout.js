/** What the loudspeaker plays next: a jitter buffer that knows to the sample what was played. */

const FADE_FRAMES = 128; // 2.7 ms at 48 kHz: too short to hear, long enough not to click
const AUDIBLE = 0.01; // -40 dBFS
const FIRST_TARGET_MS = 60;
const LEAST_TARGET_MS = 40;
const MOST_TARGET_MS = 300; // below the server's lead, so that a waiting buffer does fill

/**
 * Answers queue up behind one another; each has a `position`, the number of its frames that were
 * played, counted from the start of the answer.
 *
 * Playing starts once the buffer holds `targetMs`, once the answer is whole, or once `targetMs`
 * have passed since its first frame, whichever is first.  The target rises when an answer runs
 * dry and falls slowly with every one that does not.
 *
 * `render` adds to `events` what happened, each with its `frame` in the rendered block and the
 * answer's `responseId`, `generation` and `position`: `started`, `audible` (the first sample above
 * -40 dBFS), `underrun` (with the `gap` in frames), `finished`, and `cut`, which answers every
 * `flush` and `clearThrough` (`responseId` is null if nothing was there to cut).  The reader empties the list.
 */
export class Playout {
  events = [];
  underruns = 0;
  targetMs = FIRST_TARGET_MS;
  playing = false; // samples of an answer go to the loudspeaker
  #rateHz;
  #answers = []; // in playing order; [0] is the one that sounds
  #voidResponses = new Set();
  #voidThrough = -1;
  #cutting = false;
  #waited = 0; // frames that the first answer has waited with something to play
  #gap = 0; // frames since the first answer ran dry
  #fadeIn = 0; // frames of fade-in still to come
  #tail = { from: 0, left: 0 }; // ramp to zero from the sample where the audio broke off

  constructor(rateHz) {
    this.#rateHz = rateHz;
  }

  /** The answer that sounds, or will sound first; `null` if none is queued. */
  get current() {
    return this.#answers[0] ?? null;
  }

  /** Queue `samples`, to be played at frame `start` of their answer.  Void ones are dropped. */
  push({ responseId, generation, start, samples }) {
    if (this.#isVoid({ responseId, generation })) return;
    let answer = this.#find(responseId);
    if (!answer) {
      answer = { responseId, generation, position: start, blocks: [], whole: false, ranDry: false };
      this.#answers.push(answer);
    }
    if (samples.length > 0) answer.blocks.push({ start, samples });
  }

  /** No more audio of this answer will come. */
  end(responseId) {
    const answer = this.#find(responseId);
    if (answer) answer.whole = true;
  }

  /**
   * Stop: the next block fades out, the one after it is silent.  What is queued now will never be
   * played, nor what still arrives for it.
   */
  flush() {
    for (const { responseId, generation } of this.#answers) {
      this.#voidResponses.add(responseId);
      this.#voidThrough = Math.max(this.#voidThrough, generation ?? -1);
    }
    this.#cutting = true;
  }

  /** Stop what belongs to `generation` or an older one, now or when it arrives. */
  clearThrough(generation) {
    this.#voidThrough = Math.max(this.#voidThrough, generation);
    if (this.current && this.#isVoid(this.current)) {
      this.#cutting = true;
    } else {
      this.#answers = this.#answers.filter((answer) => !this.#isVoid(answer));
      this.#emit("cut", NOTHING, 0);
    }
  }

  /** Stop everything; a new session counts its generations afresh. */
  reset() {
    this.flush();
    this.#voidThrough = -1;
  }

  /** Fill `output`, one block of mono frames. */
  render(output) {
    output.fill(0);
    let frame = 0;
    if (this.playing || (!this.#cutting && this.#ready(output.length))) {
      frame = this.#play(output);
    }
    for (; frame < output.length && this.#tail.left > 0; frame++) {
      output[frame] = (this.#tail.from * --this.#tail.left) / FADE_FRAMES;
    }
    if (this.#cutting) this.#cut(output);
  }

  #play(output) {
    let frame = 0;
    while (frame < output.length && this.current) {
      const answer = this.current;
      if (answer.blocks.length > 0) {
        frame = this.#copy(answer, output, frame);
      } else if (answer.whole) {
        this.#finish(answer, frame);
      } else {
        this.#gap = 1;
        break;
      }
    }
    if (frame < output.length && this.playing) {
      this.playing = false;
      this.#tail = { from: frame > 0 ? output[frame - 1] : this.#tail.from, left: FADE_FRAMES };
    }
    return frame;
  }

  /** Whether a silent player may start, given that another block of silence is the alternative. */
  #ready(blockFrames) {
    const answer = this.current;
    if (!answer) return false;
    if (this.#gap > 0) this.#gap += blockFrames;
    if (answer.whole) return true;
    if (answer.blocks.length === 0) return false;
    const buffered = answer.blocks.reduce((sum, { samples }) => sum + samples.length, 0);
    const target = (this.targetMs / 1000) * this.#rateHz;
    if (buffered >= target || this.#waited >= target) return true;
    this.#waited += blockFrames;
    return false;
  }

  #copy(answer, output, frame) {
    const [block] = answer.blocks;
    if (!this.playing) this.#start(answer, frame);
    answer.position = Math.max(answer.position, block.start); // frames that never came are skipped
    this.#once("started", answer, frame);
    const from = answer.position - block.start;
    const count = Math.max(0, Math.min(block.samples.length - from, output.length - frame));
    for (let at = 0; at < count; at++) {
      const gain = this.#fadeIn > 0 ? 1 - this.#fadeIn-- / FADE_FRAMES : 1;
      output[frame + at] = gain * block.samples[from + at];
      if (Math.abs(output[frame + at]) > AUDIBLE) this.#once("audible", answer, frame + at);
    }
    if (count > 0) this.#tail.from = output[frame + count - 1];
    answer.position += count;
    if (from + count >= block.samples.length) answer.blocks.shift();
    return frame + count;
  }

  #start(answer, frame) {
    if (this.#gap > 0) {
      // Counted only now: an answer that ran dry at its very end did not underrun.
      this.underruns += 1;
      this.targetMs = Math.min(MOST_TARGET_MS, 1.5 * this.targetMs);
      this.#emit("underrun", answer, frame, { gap: this.#gap });
      answer.ranDry = true;
      this.#fadeIn = FADE_FRAMES;
    }
    this.playing = true;
    this.#gap = 0;
    this.#waited = 0;
    this.#tail.left = 0;
  }

  #finish(answer, frame) {
    if (!answer.ranDry) this.targetMs = Math.max(LEAST_TARGET_MS, 0.9 * this.targetMs);
    this.#emit("finished", answer, frame);
    this.#answers.shift();
    this.#gap = 0;
    this.#waited = 0;
  }

  #cut(output) {
    for (let at = 0; at < output.length; at++) output[at] *= 1 - (at + 1) / output.length;
    const answer = this.current;
    this.#emit("cut", answer && this.#isVoid(answer) ? answer : NOTHING, output.length);
    this.#answers = this.#answers.filter((queued) => !this.#isVoid(queued));
    this.playing = false;
    this.#cutting = false;
    this.#gap = 0;
    this.#waited = 0;
    this.#tail.left = 0;
  }

  #find(responseId) {
    return this.#answers.find((answer) => answer.responseId === responseId);
  }

  #isVoid({ responseId, generation }) {
    return (
      this.#voidResponses.has(responseId) ||
      (generation !== null && generation <= this.#voidThrough)
    );
  }

  #once(type, answer, frame) {
    if (answer[type]) return;
    answer[type] = true;
    this.#emit(type, answer, frame);
  }

  #emit(type, { responseId, generation, position }, frame, more = {}) {
    this.events.push({ type, responseId, generation, position, frame, ...more });
  }
}

const NOTHING = { responseId: null, generation: null, position: 0 };
