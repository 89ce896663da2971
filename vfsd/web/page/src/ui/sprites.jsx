// @ts-check
// Thumbnails of key frames, cut out of sheets that the server makes once.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api.js";
import { lowerBound } from "../lib/frames.js";
import { view } from "../lib/paths.js";

/** @typedef {{width: number, height: number, columns: number, rows: number, sheets: string[], frames: number[],
 *   times: number[]}} Sprites  picture i is on sheet i / (columns * rows), row by row */

/** @type {Map<string, Promise<Sprites>>} */
const asked = new Map();

/** @param {string} name @returns {Promise<Sprites>} */
function spritesOf(name) {
  let answer = asked.get(name);
  if (!answer) {
    answer = get(view(name, "sprites.json"), { w: 160 });
    answer.catch(() => asked.delete(name));
    asked.set(name, answer);
    if (asked.size > 300) asked.delete(/** @type {string} */ (asked.keys().next().value));
  }
  return answer;
}

/** The sprites of a video; null until they are there, and where there are none.
 * @param {string | null} name null asks for nothing */
export function useSprites(name) {
  const [sprites, setSprites] = useState(/** @type {Sprites | null} */ (null));
  useEffect(() => {
    setSprites(null);
    if (name === null) return undefined;
    let current = true;
    spritesOf(name).then(
      (found) => current && found.frames.length > 0 && setSprites(found),
      () => undefined,
    );
    return () => {
      current = false;
    };
  }, [name]);
  return sprites;
}

/** The picture at or before a time.
 * @param {Sprites} sprites @param {number} seconds */
export function spriteAt(sprites, seconds) {
  return Math.max(lowerBound(sprites.times, seconds + 1e-6) - 1, 0);
}

/** @param {{sprites: Sprites, index: number, width: number}} props  `width` in pixels of the page */
export function Sprite({ sprites, index, width }) {
  const { columns, rows, sheets } = sprites;
  const place = index % (columns * rows);
  const scale = width / sprites.width;
  const sheet = sheets[Math.floor(index / (columns * rows))];
  const left = (place % columns) * sprites.width * scale;
  const top = Math.floor(place / columns) * sprites.height * scale;
  return (
    <span
      class="sprite"
      style={{
        width: `${width}px`,
        height: `${sprites.height * scale}px`,
        backgroundImage: `url("${sheet}")`,
        backgroundSize: `${columns * sprites.width * scale}px auto`,
        backgroundPosition: `${-left}px ${-top}px`,
      }}
    />
  );
}
