import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, clock, duration, parseClock, pixels, took, viewSeconds } from "../src/lib/format.js";
import { FrameTable } from "../src/lib/frames.js";
import { contained, dragged, parseRegion, psnr, regionText, toPicture, toScreen } from "../src/lib/geometry.js";
import { escaped, query, videoPage } from "../src/lib/paths.js";
import { Scale, ticks, within, zoomed } from "../src/lib/scale.js";

// 23.976 fps, then a gap of a second, then uneven times: exact only as whole ticks.
const uneven = new FrameTable({
  time_base: [1, 24000],
  ticks: [0, 1001, 2002, 26002, 26003, 30000],
  end: 31001,
  key: [0, 3],
});

test("each time inside of a frame's span has its number", () => {
  for (let frame = 0; frame < uneven.length; frame++) {
    assert.equal(uneven.at(uneven.start(frame)), frame);
    assert.equal(uneven.at(uneven.middle(frame)), frame);
    assert.equal(uneven.at(uneven.end(frame) - 1e-7), frame);
  }
  assert.equal(uneven.at(-1), 0);
  assert.equal(uneven.at(99), 5);
  assert.equal(uneven.duration, 31001 / 24000);
});

test("a media time that is rounded either way has the frame's number", () => {
  for (const error of [-9e-6, 0, 9e-6]) {
    for (let frame = 0; frame < uneven.length; frame++) {
      assert.equal(uneven.nearest(uneven.start(frame) + error), frame);
    }
  }
});

test("runs are the same frames as their ticks", () => {
  const runs = new FrameTable({ time_base: [1, 30], runs: [[0, 1, 90], [100, 2, 3]], key: [0, 30] });
  assert.equal(runs.length, 93);
  assert.equal(runs.start(92), 104 / 30);
  assert.equal(runs.end(92), 106 / 30);
  assert.deepEqual([0, 29, 30, 92].map((frame) => runs.keyBefore(frame)), [0, 0, 30, 30]);
  assert.deepEqual([-5, 500, 3.7].map((frame) => runs.clamp(frame)), [0, 92, 3]);
});

test("the last second of a day of frames is found exactly", () => {
  const day = new FrameTable({ time_base: [1, 90000], runs: [[0, 3003, 2589410]], key: [0] });
  assert.equal(day.length, 2589410);
  assert.equal(day.at(day.middle(2589409)), 2589409);
  assert.equal(day.nearest(Math.floor(day.start(2589408) * 1e6) / 1e6), 2589408);
});

test("object-fit: contain leaves equal bars", () => {
  assert.deepEqual(contained(1000, 500, 400, 100), { x: 0, y: 125, scale: 2.5 });
  assert.deepEqual(contained(500, 1000, 100, 100), { x: 0, y: 250, scale: 5 });
  assert.equal(contained(100, 100, 0, 0).scale, 0);
  const fit = contained(713, 401, 1920, 1080);
  const box = { x1: 10, y1: 20, x2: 300, y2: 1080 };
  const shown = toScreen(fit, box);
  const back = [...toPicture(fit, shown.x1, shown.y1), ...toPicture(fit, shown.x2, shown.y2)];
  assert.deepEqual(back.map((value) => Math.round(value * 1e6) / 1e6), [10, 20, 300, 1080]);
});

test("a drag touches whole pixels inside of the picture", () => {
  assert.deepEqual(dragged([9.8, 20.2], [4.1, 30], 100, 50), { x1: 4, y1: 20, x2: 10, y2: 30 });
  assert.deepEqual(dragged([-5, -5], [500, 500], 100, 50), { x1: 0, y1: 0, x2: 100, y2: 50 });
  assert.equal(dragged([5, 5], [5.5, 40], 100, 50), null);
});

test("regions are read as they are written", () => {
  const box = { x1: 100, y1: 90, x2: 180, y2: 150 };
  assert.equal(regionText(box), "80x60+100+90");
  assert.deepEqual(parseRegion("80x60+100+90"), box);
  for (const text of ["", "80x60", "0x60+1+1", "80x60+-1+2", undefined]) assert.equal(parseRegion(text), null);
});

test("PSNR leaves alpha out", () => {
  const a = new Uint8ClampedArray([10, 20, 30, 255, 40, 50, 60, 255]);
  const b = new Uint8ClampedArray([10, 20, 30, 0, 40, 50, 60, 0]);
  assert.equal(psnr(a, b), Infinity);
  b[0] = 20;
  assert.ok(Math.abs(psnr(a, b) - 10 * Math.log10((65025 * 6) / 100)) < 1e-9);
});

test("pixels and times of a timeline are inverse", () => {
  const scale = new Scale(100, 250, 731, 40);
  assert.equal(scale.x(100), 40);
  assert.equal(scale.x(250), 771);
  for (const time of [100, 117.25, 249.9]) assert.ok(Math.abs(scale.time(scale.x(time)) - time) < 1e-9);
});

test("zooming keeps the time below the pointer, inside of the limits", () => {
  const [from, to] = zoomed([0, 100], 25, 0.5, 0, 100, 1);
  assert.deepEqual([from, to], [12.5, 62.5]);
  assert.deepEqual(zoomed([0, 100], 25, 8, 0, 100, 1), [0, 100]);
  assert.deepEqual(zoomed([10, 12], 12, 0.1, 0, 100, 1), [11, 12]);
  assert.deepEqual(within([-5, 5], 0, 100), [0, 10]);
  assert.deepEqual(within([95, 115], 0, 100), [80, 100]);
});

test("the ruler has round times", () => {
  const { times, step } = ticks(new Scale(3, 63, 600), 70);
  assert.equal(step, 10);
  assert.deepEqual(times, [10, 20, 30, 40, 50, 60]);
  assert.equal(ticks(new Scale(0, 30 * 86400, 900), 80).step, 604800);
  assert.deepEqual(ticks(new Scale(0, 7200, 200), 90, 1800).times, [1800, 5400]);
});

test("times are cut, sizes and lengths rounded", () => {
  assert.equal(clock(59.9999), "0:59.999");
  assert.equal(clock(0.3), "0:00.300");
  assert.equal(clock(3661.5, 1), "1:01:01.5");
  assert.equal(clock(3661.5, 0), "1:01:01");
  assert.equal(duration(4.2), "4.2 s");
  assert.equal(duration(185), "3:05");
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(1024 * 1.3), "1.3 KiB");
  assert.equal(bytes(1048575), "1.0 MiB");
  assert.equal(took(0.637), "637 ms");
  assert.equal(took(12.34), "12.3 s");
  assert.equal(pixels(124e6), "124 Mpx");
});

test("times are read back", () => {
  assert.equal(parseClock("1:02:03.5"), 3723.5);
  assert.equal(parseClock("62.5"), 62.5);
  assert.equal(parseClock("2:05"), 125);
  assert.equal(parseClock("soon"), null);
  assert.equal(viewSeconds(1 / 3), "0.333333");
  assert.equal(viewSeconds(1e-7), "0");
  assert.equal(viewSeconds(12), "12");
});

test("names are escaped, slashes stay", () => {
  assert.equal(escaped("cam 1/a?b#c%.mp4"), "cam%201/a%3Fb%23c%25.mp4");
  assert.equal(query({ a: "x y", b: "", c: null, d: 0, e: ["1", "2"] }), "?a=x+y&d=0&e=1&e=2");
  assert.equal(videoPage("a&b.mp4", { frame: 3 }), "#/v/a%26b.mp4?frame=3");
});
