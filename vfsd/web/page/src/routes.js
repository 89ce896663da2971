// @ts-check
// The pages.  A page is a component that gets the rest of the path and the parameters of the route.
import { LibraryPage } from "./pages/library.jsx";

/** @typedef {{rest: string, params: Record<string, string>}} PageProps */
/** @typedef {{at: string, name: string, icon?: string, page: (props: PageProps) => any, menu?: boolean}} Page
 *   `at` is the first part of the path; `menu` pages are below "More" on narrow screens; pages
 *   without an icon are in no menu. */

/** @type {Page[]} */
export const PAGES = [
  { at: "", name: "Library", icon: "library", page: LibraryPage },
];

/** The page of a path, and what follows in the path.
 * @param {string} path @returns {{page: Page, rest: string} | null} */
export function pageOf(path) {
  const slash = path.indexOf("/");
  const at = slash < 0 ? path : path.slice(0, slash);
  const page = PAGES.find((one) => one.at === at);
  return page ? { page, rest: slash < 0 ? "" : path.slice(slash + 1) } : null;
}
