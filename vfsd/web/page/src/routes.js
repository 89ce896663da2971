// @ts-check
// The pages.  A page is a component that gets the rest of the path and the parameters of the route.
import { CameraPage } from "./pages/camera.jsx";
import { CamerasPage } from "./pages/cameras.jsx";
import { HealthPage } from "./pages/health.jsx";
import { JobsPage } from "./pages/jobs.jsx";
import { LibraryPage } from "./pages/library/library.jsx";
import { OverlapPage } from "./pages/overlap.jsx";
import { SearchPage } from "./pages/search/search.jsx";
import { StoragePage } from "./pages/storage.jsx";
import { VideoPage } from "./pages/video/video.jsx";

/** @typedef {{rest: string, params: Record<string, string>}} PageProps */
/** @typedef {{at: string, name: string, icon?: string, page: (props: PageProps) => any, menu?: boolean, under?: string}} Page
 *   `at` is the first part of the path; `menu` pages are below "More" on narrow screens; pages
 *   without an icon are in no menu; `under` is the page of the menu that such a page belongs to. */

/** @type {Page[]} */
export const PAGES = [
  { at: "", name: "Library", icon: "library", page: LibraryPage },
  { at: "search", name: "Search", icon: "search", page: SearchPage },
  { at: "v", name: "Video", page: VideoPage, under: "" },
  { at: "cameras", name: "Cameras", icon: "camera", page: CamerasPage },
  { at: "camera", name: "Camera", page: CameraPage, under: "cameras" },
  { at: "overlap", name: "Overlap", icon: "overlap", page: OverlapPage, menu: true },
  { at: "storage", name: "Storage", icon: "storage", page: StoragePage },
  { at: "jobs", name: "Jobs", icon: "jobs", page: JobsPage, menu: true },
  { at: "health", name: "Health", icon: "health", page: HealthPage, menu: true },
];

/** The page of a path, and what follows in the path.
 * @param {string} path @returns {{page: Page, rest: string} | null} */
export function pageOf(path) {
  const slash = path.indexOf("/");
  const at = slash < 0 ? path : path.slice(0, slash);
  const page = PAGES.find((one) => one.at === at);
  return page ? { page, rest: slash < 0 ? "" : path.slice(slash + 1) } : null;
}
