// @ts-check
// Days and clocks of this browser's time zone.  Instants are milliseconds of Unix time.

/** @typedef {{start: number, end: number, key: string}} Day  `key` is `2026-05-01`; [start, end) */

/** The local day of an instant.
 * @param {number} instant @returns {Day} */
export function dayOf(instant) {
  const at = new Date(instant);
  return dayAt(at.getFullYear(), at.getMonth(), at.getDate());
}

/** The local day `2026-05-01`, or null for other text.
 * @param {string | undefined} key */
export function dayFromKey(key) {
  const parts = /^(\d{4})-(\d\d)-(\d\d)$/.exec(key ?? "");
  return parts ? dayAt(Number(parts[1]), Number(parts[2]) - 1, Number(parts[3])) : null;
}

/** Days after a day.
 * @param {Day} day @param {number} count may be negative */
export function daysAfter(day, count) {
  const at = new Date(day.start);
  return dayAt(at.getFullYear(), at.getMonth(), at.getDate() + count);
}

/** All days of the month of a day.
 * @param {Day} day */
export function monthOf(day) {
  const at = new Date(day.start);
  const days = new Date(at.getFullYear(), at.getMonth() + 1, 0).getDate();
  return Array.from({ length: days }, (_, index) => dayAt(at.getFullYear(), at.getMonth(), index + 1));
}

/** The first day of another month.
 * @param {Day} day @param {number} months */
export function monthAfter(day, months) {
  const at = new Date(day.start);
  return dayAt(at.getFullYear(), at.getMonth() + months, 1);
}

/** @param {number} year @param {number} month from 0 @param {number} date @returns {Day} */
function dayAt(year, month, date) {
  // Midnight may not exist where the clocks change then; Date takes the first instant after it.
  const start = new Date(year, month, date);
  const end = new Date(year, month, date + 1);
  const key = [start.getFullYear(), two(start.getMonth() + 1), two(start.getDate())].join("-");
  return { start: start.getTime(), end: end.getTime(), key };
}

/** `14:03:20` or `14:03:20.120`, cut and not rounded.
 * @param {number} instant @param {number} [digits] of the fraction */
export function clockAt(instant, digits = 0) {
  const at = new Date(instant);
  const head = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (digits === 0) return head;
  return `${head}.${String(Math.floor(at.getMilliseconds())).padStart(3, "0").slice(0, digits)}`;
}

/** The instant of `14:03`, `14:03:20` or `14:03:20.5` on a day, or null.  A clock that a day shows
 * twice means the first time.
 * @param {string} text @param {Day} day */
export function instantAt(text, day) {
  const parts = /^(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?$/.exec(text.trim());
  if (!parts) return null;
  const [hour, minute, second] = [Number(parts[1]), Number(parts[2]), Number(parts[3] ?? 0)];
  if (hour > 24 || minute > 59 || second > 59 || (hour === 24 && minute + second > 0)) return null;
  const at = new Date(day.start);
  const fraction = Number((parts[4] ?? "").padEnd(3, "0"));
  const found = new Date(at.getFullYear(), at.getMonth(), at.getDate(), hour, minute, second, fraction);
  return Math.min(Math.max(found.getTime(), day.start), day.end);
}

/** `Friday, 1 May 2026`.
 * @param {number} instant */
export function longDay(instant) {
  return new Intl.DateTimeFormat("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" }).format(instant);
}

/** `May 2026`.
 * @param {number} instant */
export function monthName(instant) {
  return new Intl.DateTimeFormat("en-GB", { month: "long", year: "numeric" }).format(instant);
}

/** The zone of all times, in words.
 * @param {number} instant */
export function zoneInWords(instant) {
  const format = new Intl.DateTimeFormat("en-GB", { timeZoneName: "long" });
  const zone = format.resolvedOptions().timeZone;
  const name = format.formatToParts(instant).find((part) => part.type === "timeZoneName")?.value ?? zone;
  return `${name} (${offset(instant)}), the time zone of this browser: ${zone.replaceAll("_", " ")}`;
}

/** A change of the clocks on a day in words, or null.
 * @param {Day} day */
export function changeInWords(day) {
  const hours = (day.end - day.start) / 3600000;
  if (hours === 24) return null;
  const before = new Date(day.start).getTimezoneOffset();
  let change = day.start;
  while (change < day.end && new Date(change).getTimezoneOffset() === before) change += 900000;
  // What the clocks show at the change, and would have shown without it.
  const was = new Date(change - 60000);
  const then = `${two((was.getHours() + Math.floor((was.getMinutes() + 1) / 60)) % 24)}:${two((was.getMinutes() + 1) % 60)}`;
  const way = hours < 24 ? "forward" : "back";
  return `This day has ${Number(hours.toFixed(2))} hours: at ${then} the clocks go ${way} to ${clockAt(change).slice(0, 5)}.`;
}

/** `UTC+02:00`.
 * @param {number} instant */
export function offset(instant) {
  const minutes = -new Date(instant).getTimezoneOffset();
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

/** An instant for the server.
 * @param {number} instant */
export function isoText(instant) {
  return new Date(instant).toISOString();
}

/** @param {number} value */
function two(value) {
  return String(value).padStart(2, "0");
}
