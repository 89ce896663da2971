// @ts-check
// Numbers, sizes and times as text.

const NUMBER = new Intl.NumberFormat("en");
const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/** @param {number} value */
export function count(value) {
  return NUMBER.format(value);
}

/** `3 videos`; the plural adds an s, or is given.
 * @param {number} value @param {string} one @param {string} [many] */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Bytes as the commands print them: `1.3 MiB`.
 * @param {number} value */
export function bytes(value) {
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  let left = value;
  do {
    left /= 1024;
    unit++;
  } while (left >= 1023.95 && unit < units.length - 1);
  return `${left.toFixed(left < 100 ? 1 : 0)} ${units[unit]}`;
}

/** A length: `4.2 s`, `3:05`, `2:03:05`.
 * @param {number} seconds */
export function duration(seconds) {
  if (seconds < 60) return `${trimmed(seconds, seconds < 10 ? 2 : 1)} s`;
  return clock(Math.round(seconds), 0);
}

/** A place on a timeline: `0:04.120`, `1:02:03.000`.
 * @param {number} seconds @param {number} [digits] of the fraction, cut and not rounded */
export function clock(seconds, digits = 3) {
  const scale = 10 ** digits;
  // Cut, so that a time is never shown as later than it is; the sum absorbs binary fractions.
  const all = Math.floor(Math.max(seconds, 0) * scale + 1e-6);
  const whole = Math.floor(all / scale);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const head = parts[0] > 0 ? `${parts[0]}:${two(parts[1])}` : `${parts[1]}`;
  const tail = digits > 0 ? `.${String(all % scale).padStart(digits, "0")}` : "";
  return `${head}:${two(parts[2])}${tail}`;
}

/** Seconds of `1:02:03.5`, `62.5` or `62.5s`; null for other text.
 * @param {string} text */
export function parseClock(text) {
  const parts = /^(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d*)?)s?$/.exec(text.trim());
  if (!parts) return null;
  return Number(parts[1] ?? 0) * 3600 + Number(parts[2] ?? 0) * 60 + Number(parts[3]);
}

/** CPU or wall time: `640 ms`, `2.5 s`.
 * @param {number} seconds */
export function took(seconds) {
  if (seconds < 1) return `${trimmed(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
  return seconds < 120 ? `${trimmed(seconds, 1)} s` : clock(seconds, 0);
}

/** @param {number} value @param {number} digits */
export function trimmed(value, digits) {
  return String(Number(value.toFixed(digits)));
}

/** Seconds for the name of a view: exact to a microsecond, without an exponent.
 * @param {number} seconds */
export function viewSeconds(seconds) {
  return seconds.toFixed(6).replace(/\.?0+$/, "");
}

/** Pixels: `124 Mpx`.
 * @param {number} value */
export function pixels(value) {
  if (value < 1e6) return `${trimmed(value / 1e3, 0)} kpx`;
  return value < 1e9 ? `${trimmed(value / 1e6, value < 1e8 ? 1 : 0)} Mpx` : `${trimmed(value / 1e9, 1)} Gpx`;
}

/** @param {string | number | Date} value */
export function date(value) {
  return DATE.format(new Date(value));
}

/** @param {string | number | Date} value */
export function day(value) {
  return DAY.format(new Date(value));
}

/** `3 minutes ago`.
 * @param {string | number | Date} value @param {number} [now] */
export function ago(value, now = Date.now()) {
  const seconds = (new Date(value).getTime() - now) / 1000;
  /** @type {[Intl.RelativeTimeFormatUnit, number][]} */
  const units = [["year", 31557600], ["month", 2629800], ["day", 86400], ["hour", 3600], ["minute", 60]];
  for (const [unit, length] of units) {
    if (Math.abs(seconds) >= length) return RELATIVE.format(Math.round(seconds / length), unit);
  }
  return RELATIVE.format(Math.round(seconds), "second");
}

/** The last part of a name.
 * @param {string} name */
export function baseName(name) {
  return name.slice(name.lastIndexOf("/") + 1);
}

/** The directory of a name, "" for the root.
 * @param {string} name */
export function folderOf(name) {
  return name.slice(0, Math.max(name.lastIndexOf("/"), 0));
}

/** @param {number} value */
function two(value) {
  return String(value).padStart(2, "0");
}
