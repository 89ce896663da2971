// @ts-check
// A grid or a list of any length; only the rows in sight are in the document.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { lowerBound } from "../lib/frames.js";

/**
 * @template T
 * @param {{items: T[], rowHeight: number | ((width: number) => number), heightOf?: (item: T) => number, columnWidth?: number, gap?: number, label: string,
 *   render: (item: T, index: number) => import("preact").ComponentChildren, keyOf: (item: T) => string,
 *   onEnd?: () => void, header?: import("preact").ComponentChildren, test?: string}} props
 *   `rowHeight` may depend on the width of a column; `heightOf` gives the items of one column heights of their own; without `columnWidth` each item has a row of its own;
 *   `onEnd` is called when the last rows come into sight.
 */
export function VirtualGrid({ items, rowHeight, heightOf, columnWidth, gap = 0, label, render, keyOf, onEnd, header, test }) {
  const scroller = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 800, width: 0 });

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight, width: contentWidth(element) });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  const columns = columnWidth ? Math.max(Math.floor((view.width + gap) / (columnWidth + gap)), 1) : 1;
  const cell = (view.width - gap * (columns - 1)) / columns;
  const height = typeof rowHeight === "number" ? rowHeight : rowHeight(cell);
  const pitch = height + gap;
  const rows = Math.ceil(items.length / columns);
  /** Where each row begins, and the end of the last; null where all are alike. */
  const tops = useMemo(() => (heightOf ? begins(items.map((item) => heightOf(item) + gap)) : null), [items, gap]);
  const top = (/** @type {number} */ row) => (tops ? tops[row] : row * pitch);
  const rowAt = (/** @type {number} */ y) => (tops ? lowerBound(tops, y) : Math.floor(y / pitch));
  const firstRow = Math.max(rowAt(view.top) - 2, 0);
  const endRow = Math.min(rowAt(view.top + view.height) + 3, rows);
  const nearEnd = endRow >= rows - 2;

  useEffect(() => {
    if (nearEnd && items.length > 0) onEnd?.();
  }, [nearEnd, items.length]);

  const shown = view.width > 0 ? items.slice(firstRow * columns, endRow * columns) : [];
  return (
    <div class="scroller" ref={scroller} data-test={test} onKeyDown={(event) => moveFocus(event, columns)}>
      {header}
      <div role="list" aria-label={label} class="virtual" style={{ height: `${Math.max(top(rows) - gap, 0)}px` }}>
        {shown.map((item, offset) => {
          const index = firstRow * columns + offset;
          const row = Math.floor(index / columns);
          return (
            <div
              key={keyOf(item)}
              role="listitem"
              aria-setsize={items.length}
              aria-posinset={index + 1}
              class="virtual-item"
              style={{
                transform: `translate(${(index % columns) * (cell + gap)}px, ${top(row)}px)`,
                width: `${cell}px`,
                height: `${tops ? tops[row + 1] - tops[row] - gap : height}px`,
              }}
            >
              {render(item, index)}
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** The sums of lengths up to each.
 * @param {number[]} lengths */
function begins(lengths) {
  const sums = [0];
  for (const length of lengths) sums.push(sums[sums.length - 1] + length);
  return sums;
}

/** @param {HTMLElement} element */
function contentWidth(element) {
  const style = getComputedStyle(element);
  return element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
}

/** Arrow keys move the focus among the links of the items.
 * @param {KeyboardEvent} event @param {number} columns */
function moveFocus(event, columns) {
  const steps = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns });
  const step = steps[event.key];
  const target = /** @type {HTMLElement} */ (event.target);
  if (!step || /INPUT|SELECT|TEXTAREA/.test(target.tagName)) return;
  const item = target.closest(".virtual-item");
  const list = item?.parentElement;
  if (!item || !list) return;
  const wanted = Number(item.getAttribute("aria-posinset")) + step;
  const next = list.querySelector(`[aria-posinset="${wanted}"] a, [aria-posinset="${wanted}"] button`);
  if (next instanceof HTMLElement) {
    event.preventDefault();
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}
