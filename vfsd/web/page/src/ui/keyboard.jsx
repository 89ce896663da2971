// @ts-check
// Keys of the pages, and the dialog that lists them.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Dialog } from "./messages.jsx";

export const helpOpen = signal(false);

/** @typedef {{keys: string, does: string}} KeyRow */

/** @type {import("@preact/signals").Signal<{title: string, rows: KeyRow[]}[]>} */
const groups = signal([
  {
    title: "Everywhere",
    rows: [
      { keys: "/", does: "filter or search" },
      { keys: "?", does: "this list" },
      { keys: "Esc", does: "close, cancel" },
    ],
  },
]);

/**
 * Handles keys while a component is shown, and lists them in the help.
 * @param {string} title
 * @param {Record<string, [string, (event: KeyboardEvent) => void]>} keys by `KeyboardEvent.key`;
 *   an entry with an empty text is not listed
 */
export function useKeys(title, keys) {
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const pressed = (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (target.isContentEditable || target.closest("input, textarea, select, dialog")) return;
      // A focused button keeps its own keys.
      if ((event.key === " " || event.key === "Enter") && target.closest("button, a")) return;
      const entry = keys[event.key];
      if (!entry) return;
      event.preventDefault();
      entry[1](event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
  useEffect(() => {
    const rows = Object.entries(keys)
      .filter(([, [does]]) => does)
      .map(([key, [does]]) => ({ keys: key === " " ? "Space" : key, does }));
    const group = { title, rows };
    groups.value = [...groups.value, group];
    return () => {
      groups.value = groups.value.filter((one) => one !== group);
    };
  }, []);
}

export function KeyboardHelp() {
  return (
    <Dialog title="Keys" wide onClose={() => { helpOpen.value = false; }} test="keys">
      <div class="key-groups">
        {groups.value.map((group) => (
          <section key={group.title}>
            <h3>{group.title}</h3>
            <dl class="keys">
              {group.rows.map((row) => (
                <div key={row.keys}>
                  <dt><kbd>{row.keys.replace("Arrow", "")}</kbd></dt>
                  <dd>{row.does}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
