// @ts-check
// Toasts and dialogs.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Button } from "./basics.jsx";
import { Icon } from "./icons.jsx";

/** @typedef {{id: number, text: string, hint?: string | null, tone: "plain" | "bad",
 *   action?: {label: string, run: () => void}}} Toast */

/** @type {import("@preact/signals").Signal<Toast[]>} */
const toasts = signal([]);
let last = 0;

/** Shows a line for some seconds; errors stay until they are closed.
 * @param {string} text
 * @param {{tone?: "plain" | "bad", hint?: string | null, action?: {label: string, run: () => void}}} [options] */
export function toast(text, { tone = "plain", hint, action } = {}) {
  const id = ++last;
  toasts.value = [...toasts.value.slice(-3), { id, text, hint, tone, action }];
  if (tone !== "bad") setTimeout(() => close(id), action ? 9000 : 5000);
}

/** Shows an error of the server, with its hint.
 * @param {any} error */
export function toastError(error) {
  if (error?.name === "AbortError") return;
  toast(error?.message ?? String(error), { tone: "bad", hint: error?.hint });
}

/** @param {number} id */
function close(id) {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="log" aria-live="polite" data-test="toasts">
      {toasts.value.map((one) => (
        <div key={one.id} class={`toast ${one.tone}`} role={one.tone === "bad" ? "alert" : undefined} data-test="toast">
          {one.tone === "bad" ? <Icon name="warning" /> : null}
          <div>
            <p>{one.text}</p>
            {one.hint ? <p class="toast-hint">{one.hint}</p> : null}
          </div>
          {one.action ? <Button kind="quiet" onClick={() => { one.action?.run(); close(one.id); }}>{one.action.label}</Button> : null}
          <Button kind="quiet" icon="close" label="Close" onClick={() => close(one.id)} />
        </div>
      ))}
    </div>
  );
}

/**
 * A modal dialog; Escape and the backdrop close it.
 * @param {{title: string, onClose: () => void, children: import("preact").ComponentChildren,
 *   footer?: import("preact").ComponentChildren, wide?: boolean, test?: string}} props
 */
export function Dialog({ title, onClose, children, footer, wide = false, test = "dialog" }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "dialog wide" : "dialog"}
      aria-label={title}
      data-test={test}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === element.current) onClose();
      }}
    >
      <div class="dialog-body">
        <header>
          <h2>{title}</h2>
          <Button kind="quiet" icon="close" label="Close" onClick={onClose} test="dialog-close" />
        </header>
        <div class="dialog-content">{children}</div>
        {footer ? <footer>{footer}</footer> : null}
      </div>
    </dialog>
  );
}
