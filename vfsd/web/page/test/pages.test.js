import assert from "node:assert/strict";
import { test } from "node:test";
import { FrameTable } from "../src/lib/frames.js";
import { arranged } from "../src/pages/search/groups.js";
import { eventTimes, examinedLane, readLane, storedShare, tileLayer } from "../src/pages/video/lanes.js";
import { framesIn, onFrames, viewSpan } from "../src/pages/video/spans.js";

const thirds = new FrameTable({ time_base: [1, 3], runs: [[0, 1, 30]], key: [0] });

/** The frames whose starts a view shows: a frame is shown until the next one. */
function shownIn(table, text) {
  const [from, to] = text.split("-").map(Number);
  const frames = [];
  for (let frame = 0; frame < table.length; frame++) {
    if (table.end(frame) > from + 1e-12 && table.start(frame) < to - 1e-12) frames.push(frame);
  }
  return [frames[0], frames[frames.length - 1]];
}

test("the name of an exported view has exactly the chosen frames, also where times have no end", () => {
  for (let first = 0; first < 30; first++) {
    for (let last = first; last < 30; last++) {
      const span = onFrames(thirds, [thirds.start(first), thirds.end(last)]);
      assert.deepEqual(framesIn(thirds, span), [first, last]);
      assert.deepEqual(shownIn(thirds, viewSpan(span)), [first, last]);
    }
  }
});

test("a selection begins and ends with frames, and has at least one", () => {
  assert.deepEqual(onFrames(thirds, [0.4, 0.41]), [thirds.start(1), thirds.end(1)]);
  assert.deepEqual(onFrames(thirds, [0, 99]), [0, 10]);
  assert.deepEqual(onFrames(thirds, [9.99, 10]), [thirds.start(29), 10]);
});

test("frames that a source did not examine are unknown", () => {
  const lane = examinedLane(thirds, { name: "motion", examined: [[3, 6], [9, 30]] }, "examined");
  const unknown = lane.spans.filter((one) => one.hatched).map((one) => [one.from, one.to]);
  assert.deepEqual(unknown, [[0, 1], [2, 3]]);
  const none = examinedLane(thirds, { name: "hand", examined: [] }, "by hand");
  assert.deepEqual(none.spans.map((one) => [one.from, one.to, one.hatched]), [[0, 10, true]]);
});

test("tiles cover their share, reads count where they were", () => {
  const segment = {
    frames: [0, 15], layout: "x", codec: "fast", size: 9, psnr: 40,
    tiles: [{ tile: 0, region: "10x10+0+0", size: 4, psnr: 40 }, { tile: 3, region: "20x5+10+0", size: 5, psnr: null }],
  };
  assert.equal(storedShare(segment, 400), 0.5);
  assert.deepEqual(tileLayer(segment).tiles.map((one) => [one.x1, one.y1, one.x2, one.y2]), [[0, 0, 10, 10], [10, 0, 30, 5]]);
  const { values } = readLane(thirds, [{ frames: [0, 3], kind: "api" }, { frames: [0, 30], kind: "api" }]).counts;
  assert.deepEqual([values[0], values[29], values[30], values[299]], [2, 2, 1, 1]);
});

test("an event begins where a label appears", () => {
  const rows = [{ label: "a", bins: [0, 2, 1, 0, 0] }, { label: "b", bins: [0, 0, 0, 0, 3] }];
  assert.deepEqual(eventTimes(thirds, rows), [2, 8]);
  assert.deepEqual(eventTimes(thirds, []), []);
});

test("results are grouped in their order", () => {
  const crop = { label: "car", time: 0, frame: 0, box: [0, 0, 1, 1], sprite: "", sheet: null };
  const crops = [{ ...crop, video: "a", track: 1 }, { ...crop, video: "b" }, { ...crop, video: "a", track: 2 }];
  const byVideo = arranged(crops, "video", [{ video: "a", count: 1234 }]);
  assert.deepEqual(byVideo.map((one) => [one.heading, one.note, one.crops.length]), [["a", "1,234 boxes", 2], ["b", "1 picture", 1]]);
  assert.deepEqual(arranged(crops, "track").map((one) => one.heading), ["a, car 1", "b, without track", "a, car 2"]);
  assert.deepEqual(arranged(crops, "hour").map((one) => one.heading), ["Time of recording unknown"]);
  assert.equal(arranged(crops, "none").length, 1);
});
