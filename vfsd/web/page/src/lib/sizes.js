// @ts-check
// Sizes as they are typed.

/** Bytes of `20G`, `1.5 MiB` or `5000000`, or null.  Units are powers of 1024.
 * @param {string} text */
export function byteCount(text) {
  const parts = /^\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?\s*$/i.exec(text);
  if (!parts) return null;
  const power = parts[2] === "" ? 0 : "KMGTP".indexOf(parts[2].toUpperCase()) + 1;
  return Math.round(Number(parts[1]) * 1024 ** power);
}
