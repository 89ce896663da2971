// @ts-check
// Times and numbers of frames, from the frame table of a video.

/** @typedef {{time_base: [number, number], ticks?: number[], runs?: [number, number, number][],
 *   end?: number, key: number[]}} FramesAnswer */

/** The frames of a video in display order.  Frame n is shown from `start(n)` to `end(n)`. */
export class FrameTable {
  /** @param {FramesAnswer} answer */
  constructor(answer) {
    const [numerator, denominator] = answer.time_base;
    this.unit = numerator / denominator;
    this.ticks = answer.runs ? expanded(answer.runs) : Float64Array.from(answer.ticks ?? []);
    this.keys = Int32Array.from(answer.key);
    const count = this.ticks.length;
    const last = count > 0 ? this.ticks[count - 1] : 0;
    const span = count > 1 ? last - this.ticks[count - 2] : 1;
    this.endTick = answer.end ?? last + span;
  }

  get length() {
    return this.ticks.length;
  }

  /** Seconds of the whole video. */
  get duration() {
    return this.endTick * this.unit;
  }

  /** @param {number} frame */
  start(frame) {
    return this.ticks[this.clamp(frame)] * this.unit;
  }

  /** @param {number} frame */
  end(frame) {
    const next = this.clamp(frame) + 1;
    return (next < this.length ? this.ticks[next] : this.endTick) * this.unit;
  }

  /** The time to seek to: a player that rounds still shows this frame.
   * @param {number} frame */
  middle(frame) {
    return (this.start(frame) + this.end(frame)) / 2;
  }

  /** @param {number} frame */
  clamp(frame) {
    return Math.min(Math.max(Math.trunc(frame), 0), Math.max(this.length - 1, 0));
  }

  /** The frame that is shown at a time.
   * @param {number} seconds */
  at(seconds) {
    return Math.max(lowerBound(this.ticks, seconds / this.unit + 1e-9) - 1, 0);
  }

  /** The frame whose start is nearest to a time.  A player states the start of the frame that it
   * shows, rounded to its own clock.
   * @param {number} seconds */
  nearest(seconds) {
    const before = this.at(seconds);
    if (before + 1 >= this.length) return before;
    const tick = seconds / this.unit;
    return tick - this.ticks[before] <= this.ticks[before + 1] - tick ? before : before + 1;
  }

  /** The last key frame at or before a frame, else the first one.
   * @param {number} frame */
  keyBefore(frame) {
    const index = lowerBound(this.keys, frame + 0.5) - 1;
    return this.keys[Math.max(index, 0)] ?? 0;
  }
}

/** Index of the first value that is at least `wanted`, in ascending values.
 * @param {ArrayLike<number>} values @param {number} wanted */
export function lowerBound(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param {[number, number, number][]} runs first tick, step and count of each run */
function expanded(runs) {
  const ticks = new Float64Array(runs.reduce((sum, run) => sum + run[2], 0));
  let at = 0;
  for (const [first, step, count] of runs) {
    for (let index = 0; index < count; index++) ticks[at++] = first + index * step;
  }
  return ticks;
}
