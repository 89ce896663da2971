// @ts-check
// A timeline on a canvas: lanes of times, spans and densities below a ruler.
import { effect } from "@preact/signals";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { canvasColor } from "../lib/color.js";
import { clock } from "../lib/format.js";
import { Scale, ticks, within, zoomed } from "../lib/scale.js";

/**
 * @typedef {{name: string, title?: string, height?: number,
 *   marks?: ArrayLike<number>,
 *   spans?: {from: number, to: number, color?: string, share?: number, hatched?: boolean, text?: string}[],
 *   counts?: {from: number, to: number, values: ArrayLike<number>},
 *   color?: string, facts?: string}} Lane
 *   Seconds: `marks` are thin lines, `spans` half-open bars (`share` of the height, default 1), `counts` amounts in equal
 *   parts of [from, to).  `color` is a CSS colour or the name of a CSS variable.  `facts` is the lane in words.
 */

/**
 * @typedef {{first: number, last: number, lanes: Lane[],
 *   cursor?: import("@preact/signals").Signal<number>,
 *   selection?: import("@preact/signals").Signal<[number, number] | null>,
 *   onSeek?: (seconds: number) => void, onSelect?: (span: [number, number]) => void,
 *   onView?: (from: number, to: number) => void,
 *   thumb?: (seconds: number) => import("preact").ComponentChildren,
 *   format?: (seconds: number, step?: number) => string, origin?: number, shortest?: number,
 *   label: string, test?: string}} TimelineProps
 *   Times are seconds from `first` to `last`.  `format` writes a time: with a step for the ruler, else in full.  `origin` is
 *   the second of a round time (midnight); `shortest` is the shortest window in seconds.
 */

const RULER = 22;
const GAP = 3;

/** @param {TimelineProps} props */
export function Timeline(props) {
  const { first, last, lanes, cursor, selection, label, test = "timeline" } = props;
  const format = props.format ?? defaultFormat;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const [span, setSpan] = useState(/** @type {[number, number]} */ ([first, last]));
  const [hover, setHover] = useState(/** @type {number | null} */ (null));
  const live = useRef({ props, span, width });
  const followed = useRef(first);
  live.current = { props, span, width };
  const tableId = useId();

  useEffect(() => setSpan([first, last]), [first, last]);
  useEffect(() => props.onView?.(span[0], span[1]), [span[0], span[1]]);

  const tops = useMemo(() => {
    let top = RULER;
    return lanes.map((lane) => {
      const at = top;
      top += (lane.height ?? 14) + GAP;
      return at;
    });
  }, [lanes]);
  const height = lanes.reduce((sum, lane) => sum + (lane.height ?? 14) + GAP, RULER) + 2;

  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    if (!element || width === 0) return undefined;
    let pending = 0;
    const redraw = () => {
      cancelAnimationFrame(pending);
      pending = requestAnimationFrame(() => draw(element, width, height, new Scale(span[0], span[1], width), tops, live.current.props, hover, format));
    };
    // The cursor moves with each frame: it changes the canvas alone, and renders nothing anew.
    const stop = effect(() => {
      const now = cursor?.value ?? first;
      selection?.value;
      // The window follows a cursor that moves out of it, not one that it was moved away from.
      if (now !== followed.current && (now < span[0] || now > span[1])) {
        const tenth = (span[1] - span[0]) / 10;
        setSpan(within(now < span[0] ? [now - 9 * tenth, now + tenth] : [now - tenth, now + 9 * tenth], first, last));
      }
      followed.current = now;
      element.setAttribute("aria-valuenow", String(now));
      element.setAttribute("aria-valuetext", format(now));
      redraw();
    });
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", redraw);
    const observer = new MutationObserver(redraw);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      stop();
      cancelAnimationFrame(pending);
      media.removeEventListener("change", redraw);
      observer.disconnect();
    };
  }, [lanes, span, width, height, hover, cursor, selection]);

  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    return pointers(element, live, setSpan, setHover);
  }, []);

  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const at = cursor?.peek() ?? span[0];
    const step = (event.shiftKey ? 0.1 : 0.01) * (span[1] - span[0]);
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => props.onSeek?.(Math.max(at - step, first)),
      ArrowRight: () => props.onSeek?.(Math.min(at + step, last)),
      Home: () => props.onSeek?.(first),
      End: () => props.onSeek?.(last),
      "+": () => setSpan(zoomed(span, at, 0.5, first, last, props.shortest ?? 0.2)),
      "=": () => setSpan(zoomed(span, at, 0.5, first, last, props.shortest ?? 0.2)),
      "-": () => setSpan(zoomed(span, at, 2, first, last, props.shortest ?? 0.2)),
      0: () => setSpan([first, last]),
    };
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    action();
    event.preventDefault();
    event.stopPropagation();
  };

  const hoverX = hover === null ? 0 : new Scale(span[0], span[1], width).x(hover);
  return (
    <div class="timeline" data-test={test}>
      <div class="timeline-names" aria-hidden="true">
        {lanes.map((lane, index) => (
          <span key={lane.name} title={lane.title ?? lane.name} style={{ top: `${tops[index]}px`, height: `${lane.height ?? 14}px` }}>{lane.name}</span>
        ))}
      </div>
      <div class="timeline-view">
        <canvas
          ref={canvas}
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="slider"
          aria-label={label}
          aria-valuemin={first}
          aria-valuemax={last}
          aria-valuenow={cursor?.peek() ?? first}
          aria-valuetext={format(cursor?.peek() ?? first)}
          aria-describedby={tableId}
          onKeyDown={onKeyDown}
          data-test={`${test}-canvas`}
        />
        {hover !== null ? (
          <div class="timeline-hover" style={{ left: `${Math.min(Math.max(hoverX, 84), Math.max(width - 84, 84))}px` }} aria-hidden="true">
            {props.thumb?.(hover)}
            <span>{format(hover)}</span>
          </div>
        ) : null}
      </div>
      <div class="hidden">{/* A table itself does not become as small as that. */}
        <table id={tableId} data-test={`${test}-table`}>
          <caption>{label}: lanes</caption>
          <tbody>
            {lanes.map((lane) => (
              <tr key={lane.name}>
                <th scope="row">{lane.title ?? lane.name}</th>
                <td>{lane.facts ?? inWords(lane, format)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

/** @param {number} seconds @param {number} [step] */
function defaultFormat(seconds, step) {
  return clock(seconds, step === undefined ? 3 : step < 0.1 ? 2 : step < 1 ? 1 : 0);
}

/** @param {Lane} lane @param {(seconds: number) => string} format */
function inWords(lane, format) {
  if (lane.spans) {
    const some = lane.spans.slice(0, 200).map((one) => `${one.text ? `${one.text} ` : ""}${format(one.from)} to ${format(one.to)}`);
    return some.length > 0 ? some.join("; ") : "none";
  }
  if (lane.counts) {
    let sum = 0;
    for (let index = 0; index < lane.counts.values.length; index++) sum += lane.counts.values[index];
    return `${sum} in all`;
  }
  return `${lane.marks?.length ?? 0} in all`;
}

/**
 * @param {HTMLCanvasElement} element @param {number} width @param {number} height @param {Scale} scale
 * @param {number[]} tops @param {TimelineProps} props @param {number | null} hover
 * @param {(seconds: number, step?: number) => string} format
 */
function draw(element, width, height, scale, tops, props, hover, format) {
  const ratio = devicePixelRatio || 1;
  element.width = Math.round(width * ratio);
  element.height = Math.round(height * ratio);
  const pen = element.getContext("2d");
  if (!pen) return;
  pen.scale(ratio, ratio);
  const style = getComputedStyle(element);
  /** @type {Map<string, string>} */
  const known = new Map();
  /** @param {string} [name] */
  const color = (name = "--text-2") => {
    const found = known.get(name) ?? canvasColor(name);
    known.set(name, found);
    return found;
  };
  pen.font = `11px ${style.fontFamily}`;

  for (const [index, lane] of props.lanes.entries()) {
    const top = tops[index];
    const tall = lane.height ?? 14;
    pen.fillStyle = color("--lane");
    pen.fillRect(0, top, width, tall);
    pen.fillStyle = color(lane.color ?? "--text-2");
    if (lane.counts) drawCounts(pen, lane.counts, scale, top, tall);
    if (lane.marks) drawMarks(pen, lane.marks, scale, top, tall);
    for (const one of lane.spans ?? []) {
      if (one.to < scale.from || one.from > scale.to) continue;
      const x = Math.max(scale.x(one.from), -1);
      const long = Math.max(Math.min(scale.x(one.to), width + 1) - x, 1);
      const part = tall * (one.share ?? 1);
      pen.fillStyle = color(one.color ?? lane.color);
      if (one.hatched) hatch(pen, x, top + tall - part, long, part);
      else pen.fillRect(x, top + tall - part, Math.max(long - (long > 4 ? 0.5 : 0), 0.75), part);
    }
  }

  const { times, step } = ticks(scale, 76, props.origin ?? 0);
  pen.textBaseline = "alphabetic";
  for (const time of times) {
    const x = Math.round(scale.x(time)) + 0.5;
    pen.strokeStyle = color("--grid-line");
    pen.beginPath();
    pen.moveTo(x, RULER - 5);
    pen.lineTo(x, height);
    pen.stroke();
    pen.fillStyle = color("--text-2");
    const text = format(time, step);
    const long = pen.measureText(text).width;
    if (x + 4 + long < width) pen.fillText(text, x + 4, 13);
  }

  const chosen = props.selection?.value;
  if (chosen) {
    const [a, b] = [scale.x(chosen[0]), scale.x(chosen[1])];
    pen.fillStyle = color("--veil");
    pen.fillRect(0, RULER - 2, Math.max(a, 0), height);
    pen.fillRect(Math.min(b, width), RULER - 2, width, height);
    pen.fillStyle = color("--accent");
    pen.fillRect(a, 17, b - a, 3);
    for (const [x, sign] of [[a, -1], [b, 1]]) {
      pen.fillRect(x - (sign < 0 ? 2 : 0), 17, 2, height - 17);
      pen.beginPath();
      pen.roundRect(x - (sign < 0 ? 9 : 0), 17, 9, 14, 3);
      pen.fill();
    }
  }
  if (hover !== null) {
    pen.fillStyle = color("--text-2");
    pen.fillRect(Math.round(scale.x(hover)), RULER - 6, 1, height);
  }
  if (props.cursor) {
    const x = Math.round(scale.x(props.cursor.value));
    pen.fillStyle = color("--cursor");
    pen.fillRect(x - 1, 12, 2, height);
    pen.beginPath();
    pen.arc(x, 12, 4.5, 0, Math.PI * 2);
    pen.fill();
  }
}

/** @param {CanvasRenderingContext2D} pen @param {ArrayLike<number>} marks @param {Scale} scale @param {number} top @param {number} tall */
function drawMarks(pen, marks, scale, top, tall) {
  let drawn = -10;
  for (let index = 0; index < marks.length; index++) {
    const x = scale.x(marks[index]);
    if (x < -1 || x > scale.width + 1 || x - drawn < 1.5) continue;
    pen.fillRect(Math.min(Math.round(x), scale.width - 1), top + 2, 1, tall - 4);
    drawn = x;
  }
}

/** @param {CanvasRenderingContext2D} pen @param {NonNullable<Lane["counts"]>} counts @param {Scale} scale @param {number} top @param {number} tall */
function drawCounts(pen, counts, scale, top, tall) {
  const { from, to, values } = counts;
  let most = 0;
  for (let index = 0; index < values.length; index++) most = Math.max(most, values[index]);
  if (most === 0) return;
  const step = (to - from) / values.length;
  for (let index = 0; index < values.length; index++) {
    if (values[index] === 0) continue;
    const x = scale.x(from + index * step);
    const end = scale.x(from + (index + 1) * step);
    if (end < 0 || x > scale.width) continue;
    // The least amount is seen, too.
    const part = Math.max((values[index] / most) * tall, 2);
    pen.fillRect(x, top + tall - part, Math.max(end - x, 1) + 0.3, part);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {number} width @param {number} height */
export function hatch(pen, x, y, width, height) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = pen.fillStyle;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = x - height - ((x - height) % 6); at < x + width; at += 6) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}

/**
 * Mouse, touch and wheel: a press seeks, a press on a handle moves it, shift or a second finger moves the window.
 * @param {HTMLCanvasElement} element
 * @param {{current: {props: TimelineProps, span: [number, number], width: number}}} live
 * @param {(span: [number, number]) => void} setSpan @param {(seconds: number | null) => void} setHover
 */
function pointers(element, live, setSpan, setHover) {
  /** @type {Map<number, number>} */
  const down = new Map();
  let mode = /** @type {"none" | "seek" | "start" | "end" | "pan" | "pinch"} */ ("none");
  let origin = { x: 0, span: /** @type {[number, number]} */ ([0, 1]), apart: 1 };
  const scale = () => new Scale(live.current.span[0], live.current.span[1], live.current.width);
  /** @param {PointerEvent | WheelEvent} event */
  const place = (event) => event.clientX - element.getBoundingClientRect().left;
  /** @param {number} x */
  const time = (x) => Math.min(Math.max(scale().time(x), live.current.props.first), live.current.props.last);
  /** @param {number} x */
  const handle = (x) => {
    const chosen = live.current.props.selection?.value;
    if (!chosen || !live.current.props.onSelect) return "none";
    const [a, b] = [scale().x(chosen[0]), scale().x(chosen[1])];
    if (x >= a - 11 && x <= a + 4) return "start";
    return x >= b - 4 && x <= b + 11 ? "end" : "none";
  };
  /** @param {PointerEvent} event */
  const pressed = (event) => {
    element.setPointerCapture(event.pointerId);
    const x = place(event);
    down.set(event.pointerId, x);
    origin = { x, span: live.current.span, apart: 1 };
    if (down.size === 2) {
      const [a, b] = [...down.values()];
      mode = "pinch";
      origin = { x: (a + b) / 2, span: live.current.span, apart: Math.max(Math.abs(a - b), 8) };
      return;
    }
    const grabbed = handle(x);
    mode = grabbed !== "none" ? grabbed : event.shiftKey || event.button === 1 ? "pan" : "seek";
    if (mode === "seek") live.current.props.onSeek?.(time(x));
  };
  /** @param {PointerEvent} event */
  const moved = (event) => {
    const x = place(event);
    const { props, width } = live.current;
    if (down.has(event.pointerId)) down.set(event.pointerId, x);
    if (mode === "none") {
      element.style.cursor = handle(x) === "none" ? "" : "ew-resize";
      if (event.pointerType === "mouse") setHover(time(x));
      return;
    }
    if (mode === "seek") {
      setHover(time(x));
      props.onSeek?.(time(x));
    } else if (mode === "pan") {
      const by = ((x - origin.x) / width) * (origin.span[1] - origin.span[0]);
      setSpan(within([origin.span[0] - by, origin.span[1] - by], props.first, props.last));
    } else if (mode === "pinch") {
      const [a, b] = [...down.values()];
      const about = new Scale(origin.span[0], origin.span[1], width).time(origin.x);
      setSpan(zoomed(origin.span, about, origin.apart / Math.max(Math.abs(a - b), 8), props.first, props.last, props.shortest ?? 0.2));
    } else {
      const chosen = props.selection?.value;
      if (!chosen) return;
      const at = time(x);
      props.onSelect?.(mode === "start" ? [Math.min(at, chosen[1]), chosen[1]] : [chosen[0], Math.max(at, chosen[0])]);
    }
  };
  /** @param {PointerEvent} event */
  const released = (event) => {
    down.delete(event.pointerId);
    if (down.size === 0) mode = "none";
    if (event.pointerType !== "mouse") setHover(null);
  };
  const left = () => {
    if (mode === "none") setHover(null);
  };
  /** @param {WheelEvent} event */
  const wheeled = (event) => {
    const { props, span, width } = live.current;
    const whole = span[0] <= props.first && span[1] >= props.last;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = (event.deltaX / width) * (span[1] - span[0]);
      setSpan(within([span[0] + by, span[1] + by], props.first, props.last));
    } else {
      // Nothing is left to zoom out of: the page scrolls.
      if (whole && event.deltaY > 0) return;
      setSpan(zoomed(span, scale().time(place(event)), Math.exp(Math.max(Math.min(event.deltaY, 120), -120) / 300), props.first, props.last, props.shortest ?? 0.2));
    }
    event.preventDefault();
  };
  element.addEventListener("pointerdown", pressed);
  element.addEventListener("pointermove", moved);
  element.addEventListener("pointerup", released);
  element.addEventListener("pointercancel", released);
  element.addEventListener("pointerleave", left);
  element.addEventListener("wheel", wheeled, { passive: false });
  return () => {
    element.removeEventListener("pointerdown", pressed);
    element.removeEventListener("pointermove", moved);
    element.removeEventListener("pointerup", released);
    element.removeEventListener("pointercancel", released);
    element.removeEventListener("pointerleave", left);
    element.removeEventListener("wheel", wheeled);
  };
}
