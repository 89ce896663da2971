// @ts-check
// Colours of labels and codecs.

// Okabe and Ito's palette, which viewers with any colour vision can tell apart.
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];

/** The colour of a label: the same on every page, and in the player for notebooks.
 * @param {string} label */
export function labelColor(label) {
  let hash = 0;
  for (const char of label) hash = (hash * 31 + (char.codePointAt(0) ?? 0)) >>> 0;
  return COLORS[hash % COLORS.length];
}

/** @type {Record<string, string>} */
const CODECS = { fast: "#56b4e9", small: "#cc79a7", lossless: "#009e73", exact: "#009e73", hevc: "#e69f00", av1: "#d55e00" };

/** @param {string} codec */
export function codecColor(codec) {
  return CODECS[codec] ?? labelColor(codec);
}
