// @ts-check
// The lanes of a video's timeline, from what is known about it.
import { codecColor, labelColor } from "../../lib/color.js";
import { bytes, count, counted, trimmed } from "../../lib/format.js";
import { parseRegion } from "../../lib/geometry.js";

/** @typedef {import("../../ui/timeline.jsx").Lane} Lane */
/** @typedef {import("../../lib/frames.js").FrameTable} FrameTable */
/** @typedef {{label: string, source: string, boxes: number, frames: number, tracks: number, bins?: number[]}} LabelRow */
/** @typedef {{labels: LabelRow[], sources: {name: string, examined: [number, number][]}[]}} Labels */
/** @typedef {{frames: [number, number], layout: string, codec: string, size: number, psnr: number | null,
 *   tiles: {tile: number, region: string, size: number, psnr: number | null}[]}} Segment */

/** @param {FrameTable} table @returns {Lane} */
export function keyFrames(table) {
  return {
    name: "Key frames",
    height: 12,
    marks: Array.from(table.keys, (frame) => table.start(frame)),
    color: "--key",
    facts: counted(table.keys.length, "key frame"),
  };
}

/** A lane for each label of each source, and one for each source that says where it looked.
 * @param {FrameTable} table @param {Labels} labels @param {number} most lanes of labels @returns {Lane[]} */
export function labelLanes(table, labels, most) {
  const rows = [...labels.labels].sort((a, b) => b.boxes - a.boxes).slice(0, most);
  const lanes = rows.map((row) => ({
    name: row.label,
    title: `${row.label}, by ${row.source}: ${counted(row.boxes, "box", "boxes")} on ${counted(row.frames, "frame")}`,
    height: 14,
    counts: { from: 0, to: table.duration, values: row.bins ?? [] },
    color: labelColor(row.label),
  }));
  const one = labels.sources.length === 1;
  return [...lanes, ...labels.sources.map((source) => examinedLane(table, source, one ? "examined" : `by ${source.name}`))];
}

/** Hatched where a source did not look: nothing is known there.
 * @param {FrameTable} table @param {{name: string, examined: [number, number][]}} source @param {string} title of the lane
 * @returns {Lane} */
export function examinedLane(table, { name, examined }, title) {
  /** @type {NonNullable<Lane["spans"]>} */
  const spans = [];
  let at = 0;
  for (const [first, end] of examined) {
    if (first > at) spans.push({ from: table.start(at), to: table.start(first), hatched: true, color: "--key", text: "unknown" });
    spans.push({ from: table.start(first), to: table.end(end - 1), color: "--good", share: 0.35, text: "examined" });
    at = end;
  }
  if (at < table.length) spans.push({ from: table.start(at), to: table.duration, hatched: true, color: "--key", text: "unknown" });
  return { name: title, title: `Frames examined by ${name}; hatched: unknown`, height: 10, spans };
}

/** Colour: codec.  Height: the share of the pixels that tiles have.
 * @param {FrameTable} table @param {Segment[]} segments @param {number} pixels of a frame @returns {Lane} */
export function tileLane(table, segments, pixels) {
  return {
    name: "Tiles",
    height: 18,
    spans: segments.map((one) => ({
      from: table.start(one.frames[0]),
      to: table.end(one.frames[1] - 1),
      color: codecColor(one.codec),
      share: Math.max(storedShare(one, pixels), 0.12),
      text: `${one.layout}, ${one.codec}`,
    })),
    facts: segments.length > 0
      ? `${counted(segments.length, "segment")}, ${bytes(segments.reduce((sum, one) => sum + one.size, 0))}`
      : "none",
  };
}

/** @param {Segment} segment @param {number} pixels */
export function storedShare(segment, pixels) {
  let stored = 0;
  for (const tile of segment.tiles) {
    const box = parseRegion(tile.region);
    if (box) stored += (box.x2 - box.x1) * (box.y2 - box.y1);
  }
  return Math.min(stored / pixels, 1);
}

/** @param {FrameTable} table @param {{width: number, height: number, codecs: string[], frames: number, total_frames: number,
 *   spans?: [number, number][]}[]} renditions @returns {Lane} */
export function renditionLane(table, renditions) {
  return {
    name: "Renditions",
    height: 10,
    spans: renditions.flatMap((one) =>
      (one.spans ?? [[0, table.duration]]).map(([from, to]) => ({
        from,
        to,
        color: codecColor(one.codecs[0] ?? ""),
        share: 0.7,
        text: `${one.width}x${one.height}`,
      })),
    ),
  };
}

/** How often each part was read.
 * @param {FrameTable} table @param {{frames: [number, number], kind: string}[]} reads @returns {Lane} */
export function readLane(table, reads) {
  const bins = 300;
  const values = new Float64Array(bins);
  for (const { frames } of reads) {
    const first = Math.floor((table.start(frames[0]) / table.duration) * bins);
    const end = Math.ceil((table.end(frames[1] - 1) / table.duration) * bins);
    for (let bin = Math.max(first, 0); bin < Math.min(end, bins); bin++) values[bin]++;
  }
  return {
    name: "Reads",
    title: `The last ${counted(reads.length, "read")}`,
    height: 14,
    counts: { from: 0, to: table.duration, values },
    color: "--accent",
    facts: counted(reads.length, "logged read"),
  };
}

/** @param {FrameTable} table @param {[number, number][]} damaged runs of frames @returns {Lane} */
export function damageLane(table, damaged) {
  return {
    name: "Damage",
    height: 10,
    spans: damaged.map(([first, end]) => ({ from: table.start(first), to: table.end(end - 1), color: "--bad", text: "damaged" })),
  };
}

/** Times at which a label begins to be seen, ascending.
 * @param {FrameTable} table @param {LabelRow[]} rows @returns {number[]} */
export function eventTimes(table, rows) {
  const bins = Math.max(...rows.map((row) => row.bins?.length ?? 0), 0);
  const times = [];
  let before = 0;
  for (let bin = 0; bin < bins; bin++) {
    const now = rows.reduce((sum, row) => sum + (row.bins?.[bin] ?? 0), 0);
    if (now > 0 && before === 0) times.push((bin / bins) * table.duration);
    before = now;
  }
  return times;
}

/** The segment that a frame lies in.
 * @param {Segment[]} segments @param {number} frame */
export function segmentOf(segments, frame) {
  return segments.find((one) => one.frames[0] <= frame && frame < one.frames[1]) ?? null;
}

/** @param {Segment} segment @returns {import("../../ui/overlay.jsx").TileLayer} */
export function tileLayer(segment) {
  const tiles = segment.tiles.flatMap((tile) => {
    const box = parseRegion(tile.region);
    const quality = tile.psnr === null ? "lossless" : `${trimmed(tile.psnr, 1)} dB`;
    return box ? [{ ...box, text: `${count(tile.tile)} · ${bytes(tile.size)} · ${quality}` }] : [];
  });
  return { tiles, stored: tiles.length > 0 };
}
