// @ts-check
// The session: login by a token in the address, what may be done, and the look of the page.
import { effect, signal } from "@preact/signals";
import { get, locked, post } from "./api.js";

/** @typedef {{role: string, write: boolean, version: string, can: Record<string, boolean>,
 *   store: {name: string, id: string, videos: number}}} Session */

/** @type {import("@preact/signals").Signal<Session | null>} */
export const session = signal(null);

/** @type {import("@preact/signals").Signal<any>} the error of the last attempt to begin */
export const sessionError = signal(null);

/** Whether an action may be offered.
 * @param {"label" | "change" | "upload" | "remove" | "work"} action */
export function may(action) {
  const now = session.value;
  return Boolean(now && now.write && (now.can?.[action] ?? true));
}

/** @param {string} token */
export async function login(token) {
  await post("/api/1/login", { token });
  await begin();
}

export async function logout() {
  await post("/api/1/logout");
  session.value = null;
  locked.value = true;
}

/** Asks for the session; a `#token=` in the address is used once, and leaves it at once. */
export async function begin() {
  const token = /^#token=(.+)$/.exec(location.hash);
  sessionError.value = null;
  try {
    if (token) {
      history.replaceState(null, "", "#/");
      dispatchEvent(new HashChangeEvent("hashchange"));
      await post("/api/1/login", { token: decodeURIComponent(token[1]) });
    }
    session.value = await get("/api/1/session");
    locked.value = false;
  } catch (error) {
    sessionError.value = error;
  }
}

const THEME = "vfsd-theme";

/** `light`, `dark`, or `auto` for that of the system. */
export const theme = signal(localStorage.getItem(THEME) ?? "auto");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(THEME, theme.value);
});

/** @type {string[] | null} */
let playable = null;

/** The codecs that this browser plays, asked for once. */
export function playableCodecs() {
  if (playable === null) {
    /** @type {Record<string, string>} */
    const types = {
      h264: 'video/mp4; codecs="avc1.640028"',
      hevc: 'video/mp4; codecs="hvc1.1.6.L120.B0"',
      av1: 'video/mp4; codecs="av01.0.08M.08"',
      vp9: 'video/webm; codecs="vp09.00.40.08"',
      vp8: 'video/webm; codecs="vp8"',
    };
    const source = globalThis.MediaSource;
    playable = Object.keys(types).filter((name) => source?.isTypeSupported(types[name]));
  }
  return playable;
}
