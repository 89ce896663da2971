// @ts-check
// Boxes over time; a drag narrows the search.
import { useRef, useState } from "preact/hooks";
import { clock, count, date } from "../../lib/format.js";

/** @typedef {{start: string | number, step: number, counts: number[]}} Bins  an instant, or seconds of the videos */

/** The same amounts in at most `most` parts.
 * @param {Bins} bins @param {number} most @returns {Bins} */
export function merged({ start, step, counts }, most) {
  const each = Math.max(Math.ceil(counts.length / most), 1);
  const sums = [];
  for (let index = 0; index < counts.length; index += each) {
    sums.push(counts.slice(index, index + each).reduce((sum, value) => sum + value, 0));
  }
  return { start, step: step * each, counts: sums };
}

/** @param {{bins: Bins, onSpan: (from: string | null, to: string | null) => void}} props */
export function Histogram({ bins, onSpan }) {
  const room = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [chosen, setChosen] = useState(/** @type {[number, number] | null} */ (null));
  const { start, step, counts } = bins;
  const most = Math.max(...counts, 1);
  const absolute = typeof start === "string";
  /** @param {number} index */
  const instant = (index) => new Date(Date.parse(String(start)) + index * step * 1000);
  /** @param {number} index */
  const text = (index) => (absolute ? date(instant(index)) : clock(Number(start) + index * step, 0));
  /** @param {PointerEvent} event */
  const place = (event) => {
    const box = /** @type {HTMLDivElement} */ (room.current).getBoundingClientRect();
    return Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * counts.length), 0), counts.length - 1);
  };
  const apply = () => {
    if (!chosen) return;
    const [first, last] = [Math.min(...chosen), Math.max(...chosen)];
    setChosen(null);
    if (absolute) onSpan(instant(first).toISOString(), instant(last + 1).toISOString());
  };
  return (
    <figure class="histogram" data-test="histogram" aria-label={`Boxes over time, from ${text(0)} to ${text(counts.length)}`}>
      <div
        ref={room}
        class={absolute ? "histogram-bars choosing" : "histogram-bars"}
        onPointerDown={(event) => { if (absolute) { event.currentTarget.setPointerCapture(event.pointerId); setChosen([place(event), place(event)]); } }}
        onPointerMove={(event) => { if (chosen) setChosen([chosen[0], place(event)]); }}
        onPointerUp={apply}
      >
        {counts.map((value, index) => (
          <span key={index} title={`${text(index)}: ${count(value)}`} class={chosen && index >= Math.min(...chosen) && index <= Math.max(...chosen) ? "chosen" : ""}>
            <span style={{ height: value === 0 ? "0" : `${Math.max((value / most) * 100, 4)}%` }} />
          </span>
        ))}
      </div>
      <figcaption class="muted"><span>{text(0)}</span>{absolute ? null : <span>from the start of each video</span>}<span>{text(counts.length)}</span></figcaption>
    </figure>
  );
}
