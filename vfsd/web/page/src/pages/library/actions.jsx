// @ts-check
// What can be done with the selected videos.
import { useState } from "preact/hooks";
import { get, patch, post, remove } from "../../api.js";
import { baseName, counted, folderOf } from "../../lib/format.js";
import { original, videoApi } from "../../lib/paths.js";
import { may } from "../../session.js";
import { Button, Field } from "../../ui/basics.jsx";
import { Dialog, toast, toastError } from "../../ui/messages.jsx";

/** @typedef {{key: string, name: string, icon: string, needs: "change" | "remove" | "work", fields: {key: string, label: string, hint?: string}[],
 *   explains: string, danger?: boolean, run: (name: string, values: Record<string, string>) => Promise<any>, done: string}} Action */

/** @type {Action[]} */
const ACTIONS = [
  {
    key: "tag", name: "Tag", icon: "tag", needs: "change", done: "tagged",
    fields: [{ key: "add", label: "Add tags", hint: "night rain" }, { key: "remove", label: "Remove tags" }],
    explains: "Tags are words; separate several by spaces.",
    run: async (name, { add = "", remove: drop = "" }) => {
      const gone = new Set(words(drop));
      const { tags } = await get(videoApi(name));
      const next = new Set([...tags.filter((/** @type {string} */ one) => !gone.has(one)), ...words(add)]);
      await patch(videoApi(name), { tags: [...next] });
    },
  },
  {
    key: "move", name: "Move", icon: "folder", needs: "change", done: "moved",
    fields: [{ key: "dir", label: "To directory", hint: "cam1/2026" }],
    explains: "Names in the directory stay the same. An existing video is not replaced.",
    run: (name, { dir = "" }) => patch(videoApi(name), { name: [dir.replace(/^\/+|\/+$/g, ""), baseName(name)].filter(Boolean).join("/") }),
  },
  {
    key: "policy", name: "Policy", icon: "storage", needs: "change", done: "changed",
    fields: [{ key: "policy", label: "Policy", hint: "original=keep" }],
    explains: "The policy decides if and when originals are replaced or deleted, as in `vfsd policy set`.",
    run: (name, { policy = "" }) => patch(videoApi(name), { policy }),
  },
  {
    key: "hold", name: "Hold", icon: "lock", needs: "change", done: "held",
    fields: [{ key: "reason", label: "Reason" }],
    explains: "A held video is neither changed nor removed until the hold is lifted.",
    run: (name, { reason = "" }) => patch(videoApi(name), { hold: reason }),
  },
  {
    key: "detect", name: "Detect", icon: "box", needs: "work", done: "queued",
    fields: [{ key: "with", label: "Detector", hint: "motion" }],
    explains: "The detector examines every frame, and stores its boxes.",
    run: (name, { with: detector = "" }) => post("/api/1/jobs", { kind: "detect", args: { video: name, with: detector || "motion" } }),
  },
  {
    key: "remove", name: "Remove", icon: "trash", needs: "remove", done: "removed", danger: true, fields: [],
    explains: "The videos, their tiles and their labels are deleted. There is no undo.",
    run: (name) => remove(videoApi(name)),
  },
];

/** @param {string} text */
function words(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** @param {{names: string[], onClear: () => void, onDone: () => void}} props */
export function SelectionBar({ names, onClear, onDone }) {
  const [action, setAction] = useState(/** @type {Action | null} */ (null));
  return (
    <div class="selection-bar" role="toolbar" aria-label="Selected videos" data-test="selection">
      <Button kind="quiet" icon="close" label="Clear the selection" onClick={onClear} />
      <strong>{names.length} selected</strong>
      <span class="spread" />
      {ACTIONS.filter((one) => may(one.needs)).map((one) => (
        <Button key={one.key} kind={one.danger ? "danger" : "plain"} icon={one.icon} onClick={() => setAction(one)} test={`do-${one.key}`}>{one.name}</Button>
      ))}
      <Button icon="download" onClick={() => download(names)} test="do-download">Download</Button>
      {action ? <ActionDialog action={action} names={names} onClose={() => setAction(null)} onDone={onDone} /> : null}
    </div>
  );
}

/** One file after the other: a browser asks once whether it may.
 * @param {string[]} names */
function download(names) {
  for (const [index, name] of names.entries()) {
    setTimeout(() => {
      const link = document.createElement("a");
      link.href = original(name, { download: 1 });
      link.download = baseName(name);
      link.click();
    }, index * 400);
  }
}

/** @param {{action: Action, names: string[], onClose: () => void, onDone: () => void}} props */
function ActionDialog({ action, names, onClose, onDone }) {
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
  const [done, setDone] = useState(/** @type {number | null} */ (null));
  const run = async () => {
    let count = 0;
    setDone(0);
    for (const name of names) {
      try {
        await action.run(name, values);
        setDone(++count);
      } catch (error) {
        toastError(error);
        break;
      }
    }
    if (count > 0) {
      toast(`${counted(count, "video")} ${action.done}`);
      onDone();
    }
    onClose();
  };
  const footer = (
    <>
      <Button onClick={onClose} disabled={done !== null}>Cancel</Button>
      <Button kind={action.danger ? "danger" : "primary"} busy={done !== null} onClick={run} test="action-run">
        {done === null ? `${action.name} ${counted(names.length, "video")}` : `${done} of ${names.length}`}
      </Button>
    </>
  );
  return (
    <Dialog title={`${action.name} ${counted(names.length, "video")}`} onClose={onClose} footer={footer} test={`dialog-${action.key}`}>
      <p class="muted">{action.explains}</p>
      {action.fields.map((field) => (
        <Field key={field.key} label={field.label}>
          {(id) => (
            <input id={id} placeholder={field.hint} value={values[field.key] ?? ""} onInput={(event) => setValues({ ...values, [field.key]: event.currentTarget.value })} data-test={`field-${field.key}`} />
          )}
        </Field>
      ))}
      <details>
        <summary>{counted(names.length, "video")}</summary>
        <ul class="names">{names.map((name) => <li key={name}><span class="muted">{folderOf(name) ? `${folderOf(name)}/` : ""}</span>{baseName(name)}</li>)}</ul>
      </details>
    </Dialog>
  );
}
