// @ts-check
// Boxes, tiles, heat and a region on a canvas over a picture.
import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { labelColor } from "../lib/color.js";
import { contained, dragged, toPicture, toScreen } from "../lib/geometry.js";
import { hatch } from "./timeline.jsx";

/** @typedef {import("../lib/geometry.js").Box} Box */
/** @typedef {Box & {label: string, confidence?: number | null, track?: number | string | null, faint?: boolean, dashed?: boolean}} LabelledBox */
/** @typedef {{tiles: (Box & {text: string})[], stored: boolean}} TileLayer
 *   the tiles of a moment; what no tile covers is hatched */
/** @typedef {{columns: number, rows: number, values: number[]}} HeatLayer  0 to 1, row by row */

/**
 * @param {{width: number, height: number, boxes: () => LabelledBox[], tiles: () => TileLayer | null, heat: () => HeatLayer | null,
 *   region: () => Box | null, drawing: boolean, onRegion: (region: Box | null) => void}} props
 *   The functions are called in an effect: the signals that they read cause the next drawing.
 */
export function Overlay(props) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const live = useRef(props);
  live.current = props;
  const { width, height, drawing, boxes, tiles, heat, region } = props;

  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    let pending = 0;
    let layers = /** @type {any} */ (null);
    const redraw = () => {
      cancelAnimationFrame(pending);
      pending = requestAnimationFrame(() => draw(element, width, height, layers));
    };
    const stop = effect(() => {
      layers = { boxes: boxes(), tiles: tiles(), heat: heat(), region: region() };
      redraw();
    });
    const observer = new ResizeObserver(redraw);
    observer.observe(element);
    return () => {
      stop();
      cancelAnimationFrame(pending);
      observer.disconnect();
    };
  }, [width, height, boxes, tiles, heat, region]);

  useEffect(() => {
    const element = canvas.current;
    if (!element || !drawing) return undefined;
    /** @type {[number, number] | null} */
    let begin = null;
    /** @param {PointerEvent} event @returns {[number, number]} */
    const place = (event) => {
      const box = element.getBoundingClientRect();
      const fit = contained(box.width, box.height, width, height);
      return toPicture(fit, event.clientX - box.left, event.clientY - box.top);
    };
    /** @param {PointerEvent} event */
    const pressed = (event) => {
      element.setPointerCapture(event.pointerId);
      begin = place(event);
    };
    /** @param {PointerEvent} event */
    const moved = (event) => {
      if (begin) live.current.onRegion(dragged(begin, place(event), width, height));
    };
    const released = () => {
      begin = null;
    };
    element.addEventListener("pointerdown", pressed);
    element.addEventListener("pointermove", moved);
    element.addEventListener("pointerup", released);
    element.addEventListener("pointercancel", released);
    return () => {
      element.removeEventListener("pointerdown", pressed);
      element.removeEventListener("pointermove", moved);
      element.removeEventListener("pointerup", released);
      element.removeEventListener("pointercancel", released);
    };
  }, [drawing, width, height]);

  return <canvas ref={canvas} class={drawing ? "overlay drawing" : "overlay"} aria-hidden="true" data-test="overlay" />;
}

/** @param {HTMLCanvasElement} element @param {number} width @param {number} height
 * @param {{boxes: LabelledBox[], tiles: TileLayer | null, heat: HeatLayer | null, region: Box | null}} layers */
function draw(element, width, height, layers) {
  const ratio = devicePixelRatio || 1;
  const [wide, tall] = [element.clientWidth, element.clientHeight];
  element.width = Math.round(wide * ratio);
  element.height = Math.round(tall * ratio);
  const pen = element.getContext("2d");
  if (!pen || !layers) return;
  pen.scale(ratio, ratio);
  pen.font = `600 11px ${getComputedStyle(element).fontFamily}`;
  const fit = contained(wide, tall, width, height);
  const whole = toScreen(fit, { x1: 0, y1: 0, x2: width, y2: height });
  if (layers.heat) drawHeat(pen, layers.heat, whole);
  if (layers.tiles) drawTiles(pen, layers.tiles, fit, whole);
  for (const box of layers.boxes) drawBox(pen, box, toScreen(fit, box), whole);
  if (layers.region) {
    const at = toScreen(fit, layers.region);
    pen.fillStyle = "rgb(0 0 0 / 0.45)";
    pen.beginPath();
    pen.rect(whole.x1, whole.y1, whole.x2 - whole.x1, whole.y2 - whole.y1);
    pen.rect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
    pen.fill("evenodd");
    pen.lineWidth = 1.5;
    pen.strokeStyle = "#fff";
    pen.strokeRect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
    const region = layers.region;
    tag(pen, `${region.x2 - region.x1} × ${region.y2 - region.y1}`, at.x1, at.y1, "#fff", "#111", whole);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {LabelledBox} box @param {Box} at @param {Box} whole */
function drawBox(pen, box, at, whole) {
  const color = labelColor(box.label);
  pen.globalAlpha = box.faint ? 0.45 : 1;
  pen.setLineDash(box.dashed ? [5, 4] : []);
  pen.lineWidth = 3.5;
  pen.strokeStyle = "rgb(0 0 0 / 0.35)";
  pen.strokeRect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
  pen.lineWidth = 1.75;
  pen.strokeStyle = color;
  pen.strokeRect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
  pen.setLineDash([]);
  const track = box.track === null || box.track === undefined ? "" : ` ${box.track}`;
  // The names of small boxes would hide them.
  if (at.x2 - at.x1 > 22) tag(pen, `${box.label}${track}`, at.x1, at.y1, color, "#111", whole);
  pen.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} x @param {number} y
 * @param {string} back @param {string} front @param {Box} whole */
function tag(pen, text, x, y, back, front, whole) {
  const long = pen.measureText(text).width + 8;
  const top = y - 16 < whole.y1 ? y : y - 16;
  const left = Math.max(Math.min(x - 0.9, whole.x2 - long), whole.x1);
  pen.fillStyle = back;
  pen.beginPath();
  pen.roundRect(left, top, long, 16, top < y ? [3, 3, 0, 0] : [0, 0, 3, 0]);
  pen.fill();
  pen.fillStyle = front;
  pen.textBaseline = "middle";
  pen.fillText(text, left + 4, top + 8.5);
}

/** @param {CanvasRenderingContext2D} pen @param {TileLayer} layer @param {import("../lib/geometry.js").Fit} fit @param {Box} whole */
function drawTiles(pen, layer, fit, whole) {
  pen.save();
  // Hatched: no tile has these pixels.
  pen.beginPath();
  pen.rect(whole.x1, whole.y1, whole.x2 - whole.x1, whole.y2 - whole.y1);
  for (const tile of layer.tiles) {
    const at = toScreen(fit, tile);
    pen.rect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
  }
  pen.clip("evenodd");
  pen.fillStyle = "rgb(12 12 16 / 0.5)";
  pen.fillRect(whole.x1, whole.y1, whole.x2 - whole.x1, whole.y2 - whole.y1);
  pen.fillStyle = "rgb(255 255 255 / 0.22)";
  hatch(pen, whole.x1, whole.y1, whole.x2 - whole.x1, whole.y2 - whole.y1);
  pen.restore();
  for (const tile of layer.tiles) {
    const at = toScreen(fit, tile);
    pen.lineWidth = 3;
    pen.strokeStyle = "rgb(0 0 0 / 0.4)";
    pen.strokeRect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
    pen.lineWidth = 1.25;
    pen.strokeStyle = "#fff";
    pen.strokeRect(at.x1, at.y1, at.x2 - at.x1, at.y2 - at.y1);
    if (pen.measureText(tile.text).width + 12 < at.x2 - at.x1 && at.y2 - at.y1 > 22) {
      tag(pen, tile.text, at.x1 + 4, at.y2 - 4, "rgb(0 0 0 / 0.65)", "#fff", whole);
    }
  }
}

/** @param {CanvasRenderingContext2D} pen @param {HeatLayer} heat @param {Box} whole */
function drawHeat(pen, heat, whole) {
  const wide = (whole.x2 - whole.x1) / heat.columns;
  const tall = (whole.y2 - whole.y1) / heat.rows;
  // Reads of whole frames heat all cells alike, and would hide the others.
  const least = Math.min(...heat.values);
  const range = Math.max(...heat.values) - least;
  for (let row = 0; row < heat.rows; row++) {
    for (let column = 0; column < heat.columns; column++) {
      const value = range > 0 ? (heat.values[row * heat.columns + column] - least) / range : 0;
      if (value === 0) continue;
      // From dark red to light yellow, as a black body glows.
      pen.fillStyle = `hsl(${8 + value * 44} 95% ${35 + value * 30}% / ${0.25 + value * 0.3})`;
      // Whole pixels: cells that share some would show a grid.
      const [x, y] = [Math.round(whole.x1 + column * wide), Math.round(whole.y1 + row * tall)];
      pen.fillRect(x, y, Math.round(whole.x1 + (column + 1) * wide) - x, Math.round(whole.y1 + (row + 1) * tall) - y);
    }
  }
}
