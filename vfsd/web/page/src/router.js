// @ts-check
// The route in the fragment of the address: `#/v/cam1/a.mp4?t=12.5`.
import { signal } from "@preact/signals";
import { query } from "./lib/paths.js";

/** @typedef {{path: string, params: Record<string, string>}} Route */

/** @param {string} hash @returns {Route} */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, "");
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  const params = Object.fromEntries(new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1)));
  return { path: path.split("/").map(decoded).join("/"), params };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

/** @param {string} address such as `#/search?q=car` */
export function go(address) {
  location.hash = address;
}

/** Changes parameters of the present route, without an entry in the history.
 * @param {Record<string, any>} changes null or "" removes a parameter */
export function setParams(changes) {
  const params = { ...route.value.params, ...changes };
  const path = location.hash.replace(/\?.*$/, "") || "#/";
  history.replaceState(null, "", path + query(params));
  route.value = parse(location.hash);
}
