// @ts-check
// Boxes in the pixels of a video and in those of the screen.

/** @typedef {{x1: number, y1: number, x2: number, y2: number}} Box */
/** @typedef {{x: number, y: number, scale: number}} Fit */

/** Where `object-fit: contain` puts a picture in an element, and its scale.
 * @param {number} width of the element @param {number} height of the element
 * @param {number} pictureWidth @param {number} pictureHeight @returns {Fit} */
export function contained(width, height, pictureWidth, pictureHeight) {
  if (!(pictureWidth > 0 && pictureHeight > 0)) return { x: 0, y: 0, scale: 0 };
  const scale = Math.min(width / pictureWidth, height / pictureHeight);
  return {
    x: (width - pictureWidth * scale) / 2,
    y: (height - pictureHeight * scale) / 2,
    scale,
  };
}

/** @param {Fit} fit @param {Box} box @returns {Box} */
export function toScreen(fit, box) {
  return {
    x1: fit.x + box.x1 * fit.scale,
    y1: fit.y + box.y1 * fit.scale,
    x2: fit.x + box.x2 * fit.scale,
    y2: fit.y + box.y2 * fit.scale,
  };
}

/** The point of the picture at a point of the element.
 * @param {Fit} fit @param {number} x @param {number} y @returns {[number, number]} */
export function toPicture(fit, x, y) {
  return [(x - fit.x) / fit.scale, (y - fit.y) / fit.scale];
}

/** The whole pixels that a drag between two points touches, or null where that is less than 2x2.
 * @param {[number, number]} a @param {[number, number]} b
 * @param {number} width @param {number} height @returns {Box | null} */
export function dragged(a, b, width, height) {
  const x1 = Math.max(Math.floor(Math.min(a[0], b[0])), 0);
  const y1 = Math.max(Math.floor(Math.min(a[1], b[1])), 0);
  const x2 = Math.min(Math.ceil(Math.max(a[0], b[0])), width);
  const y2 = Math.min(Math.ceil(Math.max(a[1], b[1])), height);
  return x2 - x1 >= 2 && y2 - y1 >= 2 ? { x1, y1, x2, y2 } : null;
}

/** A box as `WxH+X+Y`.
 * @param {Box} box */
export function regionText(box) {
  return `${box.x2 - box.x1}x${box.y2 - box.y1}+${box.x1}+${box.y1}`;
}

/** The box of `WxH+X+Y`, or null.
 * @param {string | undefined} text @returns {Box | null} */
export function parseRegion(text) {
  const parts = /^(\d+)x(\d+)\+(\d+)\+(\d+)$/.exec(text ?? "");
  if (!parts) return null;
  const [width, height, x1, y1] = parts.slice(1).map(Number);
  return width > 0 && height > 0 ? { x1, y1, x2: x1 + width, y2: y1 + height } : null;
}

/** PSNR in dB of two pictures of 8-bit RGBA samples, alpha left out; Infinity if they are equal.
 * @param {Uint8ClampedArray} a @param {Uint8ClampedArray} b */
export function psnr(a, b) {
  let sum = 0;
  for (let index = 0; index < a.length; index += 4) {
    for (let channel = 0; channel < 3; channel++) {
      const difference = a[index + channel] - b[index + channel];
      sum += difference * difference;
    }
  }
  return sum === 0 ? Infinity : 10 * Math.log10((255 * 255 * a.length * 0.75) / sum);
}
