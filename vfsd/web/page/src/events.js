// @ts-check
// Server-sent events: one connection, opened while a component listens.

/** @type {EventSource | null} */
let stream = null;
let listeners = 0;

/** Calls `listener` with the data of each event of a kind (`job`, `video`, `spans`).
 * @param {string} kind @param {(data: any) => void} listener
 * @returns {() => void} stops it */
export function listen(kind, listener) {
  const source = (stream ??= new EventSource("/api/1/events-stream"));
  listeners++;
  /** @param {Event} event */
  const heard = (event) => listener(JSON.parse(/** @type {MessageEvent} */ (event).data));
  source.addEventListener(kind, heard);
  return () => {
    source.removeEventListener(kind, heard);
    if (--listeners === 0) {
      source.close();
      stream = null;
    }
  };
}
