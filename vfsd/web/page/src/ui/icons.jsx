// @ts-check
// Icons of 20x20 in strokes of the text's colour.

/** @type {Record<string, string>} */
const PATHS = {
  library: "M3 4h6v5H3zM11 4h6v5h-6zM3 11h6v5H3zM11 11h6v5h-6z",
  search: "M9 3.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM13 13l4 4",
  camera: "M3 6h10v8H3zM13 9l4-2.5v7L13 11",
  overlap: "M3 3h9v9H3zM8 8h9v9H8z",
  storage: "M3 5c0-2.6 14-2.6 14 0v10c0 2.6-14 2.6-14 0zM3 5c0 2.6 14 2.6 14 0M3 10c0 2.6 14 2.6 14 0",
  jobs: "M4 5h12M4 10h12M4 15h7M14.5 13v4M12.5 15h4",
  health: "M2.5 10.5h4l2-5 3.5 9 2-4h3.5",
  play: "M6 4l10 6-10 6z",
  pause: "M6.5 4v12M13.5 4v12",
  next: "M6 5l6 5-6 5zM14.5 5v10",
  previous: "M14 5l-6 5 6 5zM5.5 5v10",
  sound: "M3 8v4h3l4 3V5L6 8zM13 7.5c1.3 1.4 1.3 3.6 0 5M15.5 5.5c2.4 2.6 2.4 6.4 0 9",
  mute: "M3 8v4h3l4 3V5L6 8zM13 8l4 4M17 8l-4 4",
  full: "M3 7V3h4M13 3h4v4M17 13v4h-4M7 17H3v-4",
  close: "M5 5l10 10M15 5L5 15",
  check: "M4 10.5l4 4 8-9",
  folder: "M2.5 5h5l1.5 2h8.5v9h-15z",
  table: "M3 4h14v12H3zM3 8h14M3 12h14M8 4v12",
  menu: "M3 5h14M3 10h14M3 15h14",
  more: "M4.5 10h.01M10 10h.01M15.5 10h.01",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  moon: "M16 11.8A6.8 6.8 0 0 1 8.2 4 6.5 6.5 0 1 0 16 11.8z",
  auto: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  help: "M7.5 7.5a2.5 2.5 0 1 1 3.6 2.3c-.8.4-1.1.9-1.1 1.7M10 14.5h.01",
  up: "M10 16V5M5.5 9.5L10 5l4.5 4.5",
  download: "M10 3v9M6 8.5l4 4 4-4M3.5 16.5h13",
  lock: "M5 9h10v8H5zM7 9V6.5a3 3 0 0 1 6 0V9",
  tag: "M3 3h6.5l7.5 7.5-6.5 6.5L3 9.5zM6.5 6.5h.01",
  box: "M4 5h12v10H4z",
  tiles: "M3 4h14v12H3zM9 4v12M3 10h14",
  heat: "M10 3c1 3 4.5 4.5 4.5 8.5a4.5 4.5 0 0 1-9 0C5.5 9.5 7 8.5 7.5 7c1 .5 1.5 1.5 1.5 2.5C10 8 10.5 5.5 10 3z",
  compare: "M3 4h14v12H3zM10 2.5v15",
  draw: "M3 3h3M3 3v3M17 3h-3M17 3v3M3 17h3M3 17v-3M13 17l4-4M17 17v-.01M9 3h2M3 9v2",
  cut: "M6.5 4v12M13.5 4v12M6.5 4H4M6.5 16H4M13.5 4H16M13.5 16H16",
  warning: "M10 3.5l7.5 13h-15zM10 8v4M10 14.300h.01",
  trash: "M4 5.5h12M8 5.5V3.5h4v2M5.5 5.5l.7 11h7.600l.7-11",
  left: "M12.5 4.5L7 10l5.5 5.5",
  right: "M7.5 4.5L13 10l-5.5 5.5",
  down: "M4.5 7.5L10 13l5.5-5.5",
  logout: "M8 3.5H4v13h4M8.5 10H17M13.5 6.5L17 10l-3.5 3.5",
  info: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM10 9.2V14M10 6.5h.01",
};

const SOLID = new Set(["play", "next", "previous"]);

/** @param {{name: string, size?: number}} props */
export function Icon({ name, size = 18 }) {
  return (
    <svg class={SOLID.has(name) ? "icon solid" : "icon"} width={size} height={size} viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name] ?? PATHS.info} />
    </svg>
  );
}
