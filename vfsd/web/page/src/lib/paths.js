// @ts-check
// Addresses of videos and of their views.

/** A name as part of a path; slashes stay.
 * @param {string} name */
export function escaped(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

/** A query string with its question mark, without the values that are null, undefined or "".
 * @param {Record<string, any>} params */
export function query(params) {
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) pairs.append(key, String(one));
  }
  const text = pairs.toString();
  return text ? `?${text}` : "";
}

/** @param {string} name @param {string} [path] such as `/frames` */
export function videoApi(name, path = "") {
  return `/api/1/videos/${escaped(name)}${path}`;
}

/** The original of a video.
 * @param {string} name @param {Record<string, any>} [params] */
export function original(name, params = {}) {
  return `/v/${escaped(name)}${query(params)}`;
}

/** A view of a video, as below `NAME@/` in a mount.
 * @param {string} name @param {string} path @param {Record<string, any>} [params] */
export function view(name, path, params = {}) {
  return `/v/${escaped(name)}@/${path}${query(params)}`;
}

/** @param {string} name @param {number} frame @param {Record<string, any>} [params] */
export function still(name, frame, params = {}) {
  return view(name, `frames/${String(frame).padStart(6, "0")}.jpg`, params);
}

/** The page of a video.
 * @param {string} name @param {Record<string, any>} [params] such as `{frame: 12}` */
export function videoPage(name, params = {}) {
  return `#/v/${escaped(name)}${query(params)}`;
}
