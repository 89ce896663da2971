// @ts-check
// Crops by video, track or hour, in the order in which they come.
import { counted } from "../../lib/format.js";

/** @typedef {import("./search.jsx").ShownCrop} ShownCrop */

const HOUR = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "numeric" });

/** @param {ShownCrop[]} crops @param {string} group @param {{video: string, count: number}[]} [totals]
 * @returns {{heading: string | null, note: string, crops: ShownCrop[]}[]} */
export function arranged(crops, group, totals = []) {
  if (group === "none") return [{ heading: null, note: "", crops }];
  /** @type {Map<string, ShownCrop[]>} */
  const groups = new Map();
  for (const crop of crops) {
    const key = headingOf(crop, group);
    const found = groups.get(key);
    if (found) found.push(crop);
    else groups.set(key, [crop]);
  }
  const boxes = new Map(totals.map((one) => [one.video, one.count]));
  return [...groups].map(([heading, some]) => {
    const all = group === "video" ? boxes.get(heading) : undefined;
    return { heading, note: all === undefined ? counted(some.length, "picture") : counted(all, "box", "boxes"), crops: some };
  });
}

/** @param {ShownCrop} crop @param {string} group */
function headingOf(crop, group) {
  if (group === "hour") return crop.at ? HOUR.format(new Date(crop.at)) : "Time of recording unknown";
  if (group === "track") {
    return crop.track === null || crop.track === undefined ? `${crop.video}, without track` : `${crop.video}, ${crop.label} ${crop.track}`;
  }
  return crop.video;
}
