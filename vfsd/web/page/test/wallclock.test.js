// Days of a zone with summer time.
import assert from "node:assert/strict";
import test from "node:test";

process.env.TZ = "Europe/Zurich";
const { changeInWords, clockAt, dayFromKey, dayOf, daysAfter, instantAt, isoText, monthOf, offset, zoneInWords } = await import("../src/lib/wallclock.js");

/** @param {string} key */
function day(key) {
  const found = dayFromKey(key);
  assert.ok(found);
  return found;
}

test("a day has 23, 24 or 25 hours", () => {
  const hours = ["2026-03-29", "2026-05-01", "2026-10-25"].map((key) => (day(key).end - day(key).start) / 3600000);
  assert.deepEqual(hours, [23, 24, 25]);
});

test("a change of the clocks is said in words", () => {
  assert.equal(changeInWords(day("2026-05-01")), null);
  assert.equal(changeInWords(day("2026-03-29")), "This day has 23 hours: at 02:00 the clocks go forward to 03:00.");
  assert.equal(changeInWords(day("2026-10-25")), "This day has 25 hours: at 03:00 the clocks go back to 02:00.");
});

test("days follow each other without a gap", () => {
  const days = monthOf(day("2026-10-01"));
  assert.equal(days.length, 31);
  for (let index = 1; index < days.length; index++) assert.equal(days[index].start, days[index - 1].end);
  assert.equal(daysAfter(days[30], 1).key, "2026-11-01");
  assert.equal(dayOf(days[24].end - 1).key, "2026-10-25");
});

test("a clock of a day is an instant", () => {
  const summer = day("2026-05-01");
  assert.equal(isoText(instantAt("14:03:20.5", summer) ?? 0), "2026-05-01T12:03:20.500Z");
  assert.equal(isoText(instantAt("24:00", summer) ?? 0), "2026-05-01T22:00:00.000Z");
  for (const text of ["", "14", "25:00", "14:60", "14:03:61", "24:01", "now"]) assert.equal(instantAt(text, summer), null);
  // The hour that is there twice: the first time.
  assert.equal(isoText(instantAt("02:30", day("2026-10-25")) ?? 0), "2026-10-25T00:30:00.000Z");
});

test("an instant is shown in the zone", () => {
  const instant = Date.parse("2026-05-01T12:03:20.987Z");
  assert.equal(clockAt(instant), "14:03:20");
  assert.equal(clockAt(instant, 2), "14:03:20.98");
  assert.equal(offset(instant), "UTC+02:00");
  assert.match(zoneInWords(instant), /Central European Summer Time \(UTC\+02:00\).*Europe\/Zurich/);
});
