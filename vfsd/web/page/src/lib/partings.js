// @ts-check
// The recordings of a camera in order of time, and the gaps between them.
import { lowerBound } from "./frames.js";

/** @typedef {{name: string, start: number, end: number, origin: number}} Part
 *   A video that counts from `start` to `end`; its frame 0 is at `origin`.  Milliseconds of Unix
 *   time, with fractions. */

export class Partings {
  /** @param {Part[]} parts in order of time, without overlaps */
  constructor(parts) {
    this.parts = parts;
    this.starts = parts.map((part) => part.start);
  }

  /** The part that is shown at an instant, or null in a gap.
   * @param {number} instant @returns {Part | null} */
  at(instant) {
    const part = this.parts[lowerBound(this.starts, instant + 0.02) - 1];
    return part && instant < part.end ? part : null;
  }

  /** The first part that begins after an instant.
   * @param {number} instant @returns {Part | null} */
  after(instant) {
    return this.parts[lowerBound(this.starts, instant + 0.02)] ?? null;
  }

  /** The last part that ends at or before an instant.
   * @param {number} instant @returns {Part | null} */
  before(instant) {
    for (let index = lowerBound(this.starts, instant) - 1; index >= 0; index--) {
      if (this.parts[index].end <= instant + 0.02) return this.parts[index];
    }
    return null;
  }

  /** Gaps of at least `least` milliseconds inside [from, to).
   * @param {number} from @param {number} to @param {number} [least] */
  gaps(from, to, least = 1000) {
    const found = [];
    let covered = from;
    for (const part of this.parts) {
      if (part.end <= from || part.start >= to) continue;
      if (part.start - covered >= least) found.push({ start: covered, end: part.start });
      covered = Math.max(covered, part.end);
    }
    if (to - covered >= least) found.push({ start: covered, end: to });
    return found;
  }

  /** Milliseconds of [from, to) that are covered.
   * @param {number} from @param {number} to */
  covered(from, to) {
    return this.parts.reduce((sum, part) => sum + Math.max(Math.min(part.end, to) - Math.max(part.start, from), 0), 0);
  }
}
