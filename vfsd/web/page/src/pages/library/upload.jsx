// @ts-check
// Files that are dropped on the library, or chosen, become videos of the present directory.
import { signal } from "@preact/signals";
import { useRef, useState } from "preact/hooks";
import { upload } from "../../api.js";
import { counted, trimmed } from "../../lib/format.js";
import { original } from "../../lib/paths.js";
import { may } from "../../session.js";
import { Button } from "../../ui/basics.jsx";
import { Icon } from "../../ui/icons.jsx";
import { toast, toastError } from "../../ui/messages.jsx";

/** @type {import("@preact/signals").Signal<{name: string, share: number}[]>} */
const sending = signal([]);

/** @param {{dir: string, onDone: () => void, children: import("preact").ComponentChildren}} props */
export function UploadTarget({ dir, onDone, children }) {
  const [over, setOver] = useState(false);
  const depth = useRef(0);
  const allowed = may("upload");
  /** @param {DragEvent} event */
  const hasFiles = (event) => Boolean(event.dataTransfer?.types.includes("Files"));
  return (
    <div
      class="upload-target"
      onDragEnter={(event) => {
        if (!hasFiles(event)) return;
        depth.current++;
        setOver(true);
      }}
      onDragLeave={() => {
        if (--depth.current <= 0) setOver(false);
      }}
      onDragOver={(event) => {
        if (hasFiles(event)) event.preventDefault();
      }}
      onDrop={(event) => {
        event.preventDefault();
        depth.current = 0;
        setOver(false);
        const files = [...(event.dataTransfer?.files ?? [])];
        if (!allowed) toast("The server is read-only.", { tone: "bad", hint: "Start it with `vfsd serve --write`." });
        else void send(files, dir, onDone);
      }}
    >
      {children}
      {over ? (
        <div class="drop">
          <div><Icon name="up" size={28} /><strong>{allowed ? `Add to ${dir || "the store"}` : "The server is read-only"}</strong></div>
        </div>
      ) : null}
      {sending.value.length > 0 ? (
        <div class="uploads" role="status" data-test="uploads">
          {sending.value.map((one) => (
            <div key={one.name}>
              <span class="cut">{one.name}</span>
              <span class="muted">{trimmed(one.share * 100, 0)} %</span>
              <progress value={one.share} aria-label={one.name} />
            </div>
          ))}
        </div>
      ) : null}
    </div>
  );
}

/** The same without a mouse.
 * @param {{dir: string, onDone: () => void}} props */
export function UploadButton({ dir, onDone }) {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  if (!may("upload")) return null;
  return (
    <>
      <input
        type="file"
        multiple
        class="hidden"
        tabIndex={-1}
        aria-hidden="true"
        ref={field}
        onChange={(event) => {
          const files = [...(event.currentTarget.files ?? [])];
          event.currentTarget.value = "";
          void send(files, dir, onDone);
        }}
      />
      <Button icon="up" label="Add files" onClick={() => field.current?.click()} test="upload" />
    </>
  );
}

/** @param {File[]} files @param {string} dir @param {() => void} onDone */
async function send(files, dir, onDone) {
  let count = 0;
  for (const file of files) {
    const name = dir ? `${dir}/${file.name}` : file.name;
    sending.value = [...sending.value, { name, share: 0 }];
    try {
      await upload(original(name), file, (share) => {
        sending.value = sending.value.map((one) => (one.name === name ? { name, share } : one));
      });
      count++;
    } catch (error) {
      toastError(error);
    }
    sending.value = sending.value.filter((one) => one.name !== name);
  }
  if (count > 0) {
    toast(`${counted(count, "file")} added`);
    onDone();
  }
}
