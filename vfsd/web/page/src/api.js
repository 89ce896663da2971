// @ts-check
// Requests to the server.
import { signal } from "@preact/signals";
import { useCallback, useEffect, useState } from "preact/hooks";
import { query } from "./lib/paths.js";

/** An answer that is an error, with the words of the server. */
export class ApiError extends Error {
  /** @param {number} status @param {any} body */
  constructor(status, body) {
    super(body?.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.hint = /** @type {string | null} */ (body?.hint ?? null);
  }
}

/** Whether the server asked for a token. */
export const locked = signal(false);

/**
 * @param {string} method @param {string} path
 * @param {{params?: Record<string, any>, body?: any, signal?: AbortSignal}} [options]
 * @returns {Promise<any>}
 */
export async function request(method, path, { params = {}, body, signal: abort } = {}) {
  /** @type {RequestInit} */
  const init = { method, credentials: "same-origin", signal: abort, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { Accept: "application/json", "Content-Type": "application/json" };
  }
  let answer;
  try {
    answer = await fetch(path + query(params), init);
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new ApiError(0, { message: "The server does not answer.", hint: "Is `vfsd serve` still running?" });
  }
  const isJson = /json/.test(answer.headers.get("Content-Type") ?? "");
  const found = isJson ? await answer.json() : null;
  if (answer.ok) return found;
  if (answer.status === 401) locked.value = true;
  throw new ApiError(answer.status, found);
}

/** @param {string} path @param {Record<string, any>} [params] @param {AbortSignal} [abort] */
export function get(path, params, abort) {
  return request("GET", path, { params, signal: abort });
}

/** @param {string} path @param {any} [body] */
export function post(path, body = {}) {
  return request("POST", path, { body });
}

/** @param {string} path @param {any} body */
export function put(path, body) {
  return request("PUT", path, { body });
}

/** @param {string} path @param {any} body */
export function patch(path, body) {
  return request("PATCH", path, { body });
}

/** @param {string} path @param {Record<string, any>} [params] */
export function remove(path, params) {
  return request("DELETE", path, { params });
}

/** Bytes that a GET of `path` would send, and its headers.
 * @param {string} path @param {AbortSignal} [abort] */
export async function head(path, abort) {
  const answer = await fetch(path, { method: "HEAD", credentials: "same-origin", signal: abort });
  if (!answer.ok) throw new ApiError(answer.status, null);
  return { bytes: Number(answer.headers.get("Content-Length")), headers: answer.headers };
}

/** Sends a file as the bytes of a video.
 * @param {string} path @param {File} file @param {(share: number) => void} onProgress
 * @returns {Promise<void>} */
export function upload(path, file, onProgress) {
  // fetch() does not report the progress of a body.
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("PUT", path);
    sending.setRequestHeader("Content-Type", "application/octet-stream");
    sending.upload.onprogress = (event) => onProgress(event.loaded / Math.max(event.total, 1));
    sending.onerror = () => reject(new ApiError(0, { message: "The upload broke off." }));
    sending.onload = () => {
      if (sending.status < 300) return resolve();
      let body = null;
      try {
        body = JSON.parse(sending.responseText);
      } catch {
        // Not the server's own error; the status says enough.
      }
      reject(new ApiError(sending.status, body));
    };
    sending.send(file);
  });
}

/**
 * The answer to a GET, kept up to date with its path and parameters.  A null path asks nothing.
 * @param {string | null} path @param {Record<string, any>} [params]
 * @returns {{data: any, error: any, loading: boolean, reload: () => void}}
 */
export function useAnswer(path, params = {}) {
  const key = path === null ? null : path + query(params);
  const [state, setState] = useState({ key: /** @type {string | null} */ (null), data: /** @type {any} */ (null), error: /** @type {any} */ (null) });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (key === null) return undefined;
    const abort = new AbortController();
    get(key, {}, abort.signal).then(
      (data) => setState({ key, data, error: null }),
      (error) => {
        if (!abort.signal.aborted) setState({ key, data: null, error });
      },
    );
    return () => abort.abort();
  }, [key, turn]);
  const reload = useCallback(() => setTurn((value) => value + 1), []);
  const current = state.key === key;
  return {
    data: current ? state.data : null,
    error: current ? state.error : null,
    loading: key !== null && !current,
    reload,
  };
}
