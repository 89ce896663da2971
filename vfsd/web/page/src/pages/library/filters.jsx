// @ts-check
// Filters: the options of `vfsd find`, and labels.
import { useState } from "preact/hooks";
import { setParams } from "../../router.js";
import { Button, Field } from "../../ui/basics.jsx";

/** Filters of the address, and the words in front of their values. */
export const ACTIVE = new Map([
  ["glob", "name"],
  ["label", "with"],
  ["tag", "tagged"],
  ["meta", "where"],
  ["codec", "codec"],
  ["container", "in"],
  ["min_seconds", "seconds ≥"],
  ["max_seconds", "seconds ≤"],
  ["min_width", "width ≥"],
  ["min_height", "height ≥"],
  ["min_bytes", "bytes ≥"],
  ["max_bytes", "bytes ≤"],
  ["from", "recorded from"],
  ["to", "recorded until"],
  ["since", "changed since"],
  ["until", "changed until"],
]);

/** @type {{key: string, label: string, type?: "number" | "datetime-local", hint?: string, list?: string[]}[]} */
const FIELDS = [
  { key: "label", label: "Label", hint: "car" },
  { key: "tag", label: "Tag", hint: "night" },
  { key: "meta", label: "Metadata", hint: "site=gate" },
  { key: "codec", label: "Codec", hint: "h264", list: ["h264", "hevc", "av1", "vp9", "mpeg2video", "mjpeg", "ffv1"] },
  { key: "min_seconds", label: "Seconds, at least", type: "number" },
  { key: "max_seconds", label: "Seconds, at most", type: "number" },
  { key: "min_width", label: "Width, at least", type: "number" },
  { key: "min_height", label: "Height, at least", type: "number" },
  { key: "min_bytes", label: "Size, at least", hint: "10M" },
  { key: "max_bytes", label: "Size, at most", hint: "2G" },
  { key: "from", label: "Recorded from", type: "datetime-local" },
  { key: "to", label: "Recorded until", type: "datetime-local" },
];

/** @param {{params: Record<string, string>, onClose: () => void}} props */
export function FilterPanel({ params, onClose }) {
  const [draft, setDraft] = useState(/** @type {Record<string, string>} */ ({}));
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    /** @type {Record<string, string | null>} */
    const changes = {};
    for (const [key, value] of Object.entries(draft)) {
      const zoned = key === "from" || key === "to";
      changes[key] = value === "" ? null : zoned ? new Date(value).toISOString() : value.trim();
    }
    setParams(changes);
    onClose();
  };
  return (
    <form class="filter-panel" onSubmit={submit} data-test="filter-panel">
      {FIELDS.map((field) => (
        <Field key={field.key} label={field.label}>
          {(id) => (
            <>
              <input
                id={id}
                type={field.type ?? "text"}
                min={field.type === "number" ? 0 : undefined}
                step={field.type === "number" ? "any" : undefined}
                placeholder={field.hint}
                list={field.list ? `${id}-list` : undefined}
                value={draft[field.key] ?? shown(field, params[field.key])}
                onInput={(event) => setDraft({ ...draft, [field.key]: event.currentTarget.value })}
                data-test={`filter-${field.key}`}
              />
              {field.list ? <datalist id={`${id}-list`}>{field.list.map((one) => <option key={one} value={one} />)}</datalist> : null}
            </>
          )}
        </Field>
      ))}
      <div class="filter-end">
        <Button kind="quiet" onClick={onClose}>Cancel</Button>
        <Button kind="primary" type="submit" test="filter-apply">Apply</Button>
      </div>
    </form>
  );
}

/** @param {{type?: string}} field @param {string | undefined} value */
function shown(field, value) {
  if (!value || field.type !== "datetime-local") return value ?? "";
  const date = new Date(value);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}
