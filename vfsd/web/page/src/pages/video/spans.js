// @ts-check
// Spans of frames as seconds in the names of views.

const MICRO = 1e6;

/** `A-B` for exactly the frames whose starts lie in [from, to).  The first is rounded up: its frame is shown
 * then, the one before is not.  The second is rounded down: the frame that begins there stays out.
 * @param {[number, number]} span of starts of frames @returns {string} */
export function viewSpan([from, to]) {
  return `${seconds(Math.ceil(from * MICRO - 1e-4))}-${seconds(Math.floor(to * MICRO + 1e-4))}`;
}

/** @param {number} micros */
function seconds(micros) {
  return (micros / MICRO).toFixed(6).replace(/\.?0+$/, "");
}

/** A span that begins and ends where frames do, with at least one frame.
 * @param {import("../../lib/frames.js").FrameTable} table @param {[number, number]} span
 * @returns {[number, number]} */
export function onFrames(table, [from, to]) {
  const first = table.nearest(from);
  const after = to >= table.duration - 1e-9 ? table.length : table.nearest(to);
  const end = Math.max(after, first + 1);
  return [table.start(first), end < table.length ? table.start(end) : table.duration];
}

/** The frames of a span that `onFrames` made, as first and last.
 * @param {import("../../lib/frames.js").FrameTable} table @param {[number, number]} span
 * @returns {[number, number]} */
export function framesIn(table, [from, to]) {
  const first = table.nearest(from);
  const last = to >= table.duration - 1e-9 ? table.length - 1 : table.nearest(to) - 1;
  return [first, Math.max(last, first)];
}
