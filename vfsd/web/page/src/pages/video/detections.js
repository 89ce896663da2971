// @ts-check
// The boxes of a video, fetched in spans around the frame in sight.
import { signal } from "@preact/signals";
import { get } from "../../api.js";
import { videoApi } from "../../lib/paths.js";

/** Seconds of a request. */
const SPAN = 20;

/** @typedef {import("../../ui/overlay.jsx").LabelledBox & {source: string}} Row */

export class Detections {
  /** @param {string} name @param {import("../../lib/frames.js").FrameTable} table */
  constructor(name, table) {
    this.name = name;
    this.table = table;
    /** @type {Map<number, Row[]>} */
    this.byFrame = new Map();
    /** @type {Set<number>} */
    this.asked = new Set();
    /** Changes with each answer. */
    this.version = signal(0);
  }

  /** The boxes of a frame that are there, while those around it are asked for.
   * @param {number} frame @returns {Row[]} */
  at(frame) {
    const time = this.table.start(frame);
    this.#want(Math.floor(time / SPAN));
    if (time % SPAN > SPAN * 0.6) this.#want(Math.floor(time / SPAN) + 1);
    return this.byFrame.get(frame) ?? [];
  }

  /** @param {number} part */
  #want(part) {
    if (this.asked.has(part) || part * SPAN >= this.table.duration) return;
    this.asked.add(part);
    void this.#fetch(part);
  }

  /** @param {number} part */
  async #fetch(part) {
    try {
      let after = null;
      do {
        const found = await get(videoApi(this.name, "/detections"), { from: part * SPAN, to: (part + 1) * SPAN, after });
        this.#keep(found.columns, part);
        after = found.next;
      } while (after !== null && after !== undefined);
    } catch {
      this.asked.delete(part); // the next frame asks again
    }
    this.version.value++;
  }

  /** @param {Record<string, any[]>} columns @param {number} part */
  #keep(columns, part) {
    for (let row = 0; row < columns.frame.length; row++) {
      const frame = columns.frame[row];
      // A frame belongs to the span in which it begins.
      if (Math.floor(this.table.start(frame) / SPAN) !== part) continue;
      const box = {
        x1: columns.x1[row], y1: columns.y1[row], x2: columns.x2[row], y2: columns.y2[row],
        label: columns.label[row], source: columns.source[row],
        confidence: columns.confidence?.[row] ?? null, track: columns.track?.[row] ?? null,
      };
      const rows = this.byFrame.get(frame);
      if (rows) rows.push(box);
      else this.byFrame.set(frame, [box]);
    }
  }
}
