// @ts-check
// Colours of labels and codecs.

// Okabe and Ito's palette without black, which viewers with any colour vision can tell apart, then lighter
// and darker relatives of it for when there are more labels.
const COLORS = [
  "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#4c8be0", "#d55e00", "#cc79a7", "#8fd6bd",
  "#ff9e80", "#b39ddb", "#a3c644", "#c9a66b",
];
/** With this seed the labels that detectors give most often have different colours. */
const SEED = 753;

/** The colour of a label: the same on every page.
 * @param {string} label */
export function labelColor(label) {
  let hash = SEED;
  for (const char of label) hash = Math.imul(hash ^ (char.codePointAt(0) ?? 0), 0x01000193) >>> 0;
  return COLORS[((hash ^ (hash >>> 15)) >>> 0) % COLORS.length];
}

/** @type {Record<string, string>} */
const CODECS = { fast: "#56b4e9", small: "#cc79a7", lossless: "#009e73", hevc: "#e69f00", av1: "#d55e00" };

/** The colour of a tile codec.
 * @param {string} codec */
export function codecColor(codec) {
  return CODECS[codec] ?? labelColor(codec);
}

/** @type {HTMLElement | null} */
let probe = null;

/** A colour that a canvas takes: CSS variables hold functions such as light-dark().
 * @param {string} name of a CSS variable, or a colour */
export function canvasColor(name) {
  if (!name.startsWith("--")) return name;
  if (probe === null) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
