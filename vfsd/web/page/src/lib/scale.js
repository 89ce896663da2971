// @ts-check
// Seconds and pixels of a timeline.

/** A window on time: seconds `from` to `to`, over `width` pixels that begin at `left`. */
export class Scale {
  /** @param {number} from @param {number} to @param {number} width @param {number} [left] */
  constructor(from, to, width, left = 0) {
    this.from = from;
    this.to = to;
    this.width = Math.max(width, 1);
    this.left = left;
  }

  /** @param {number} seconds */
  x(seconds) {
    return this.left + ((seconds - this.from) / (this.to - this.from)) * this.width;
  }

  /** @param {number} x */
  time(x) {
    return this.from + ((x - this.left) / this.width) * (this.to - this.from);
  }

  /** Seconds of a pixel. */
  get pixel() {
    return (this.to - this.from) / this.width;
  }
}

/** A window zoomed about a time that keeps its place, inside [first, last].
 * @param {[number, number]} span @param {number} about @param {number} factor above 1 zooms out
 * @param {number} first @param {number} last @param {number} least shortest window
 * @returns {[number, number]} */
export function zoomed([from, to], about, factor, first, last, least) {
  const length = Math.min(Math.max((to - from) * factor, least), last - first);
  const share = to > from ? (about - from) / (to - from) : 0.5;
  return within([about - share * length, about + (1 - share) * length], first, last);
}

/** A window moved inside [first, last], with its length.
 * @param {[number, number]} span @param {number} first @param {number} last
 * @returns {[number, number]} */
export function within([from, to], first, last) {
  const length = Math.min(to - from, last - first);
  const start = Math.min(Math.max(from, first), last - length);
  return [start, start + length];
}

const STEPS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  10800, 21600, 43200, 86400, 172800, 604800,
];

/** Round times for the ruler, at least `apart` pixels from each other.
 * @param {Scale} scale @param {number} apart @param {number} [origin] seconds of a round time
 * @returns {{times: number[], step: number}} */
export function ticks(scale, apart, origin = 0) {
  const least = scale.pixel * apart;
  const step = STEPS.find((one) => one >= least) ?? Math.ceil(least / 604800) * 604800;
  const first = Math.ceil((scale.from - origin) / step - 1e-9);
  const last = Math.floor((scale.to - origin) / step + 1e-9);
  const times = [];
  for (let index = first; index <= last; index++) times.push(origin + index * step);
  return { times, step };
}
