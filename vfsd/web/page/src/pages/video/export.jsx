// @ts-check
// Export of exactly some seconds; the size is known before.
import { useEffect, useState } from "preact/hooks";
import { head, useAnswer } from "../../api.js";
import { baseName, bytes, clock, count, counted, duration, parseClock } from "../../lib/format.js";
import { regionText } from "../../lib/geometry.js";
import { videoApi, view } from "../../lib/paths.js";
import { Button, Failure, Field, Spinner } from "../../ui/basics.jsx";
import { framesIn, onFrames, viewSpan } from "./spans.js";

/** @param {{name: string, table: import("../../lib/frames.js").FrameTable, height: number, span: [number, number],
 *   region: import("../../lib/geometry.js").Box | null, onSpan: (span: [number, number]) => void, onPlay: () => void, onClose: () => void}} props */
export function ExportPanel({ name, table, height, span, region, onSpan, onPlay, onClose }) {
  const [size, setSize] = useState("");
  const [cropped, setCropped] = useState(true);
  const [first, last] = framesIn(table, span);
  const parts = [`t=${viewSpan(span)}`];
  if (region && cropped) parts.push(`roi=${regionText(region)}`);
  if (size) parts.push(`size=0x${size}`);
  const file = `${parts.join(",")}.mp4`;
  const made = useAnswer(videoApi(name, "/explain"), { view: file });
  const length = useSize(view(name, file));
  const error = made.error ?? length.error;
  const sizes = [1080, 720, 480, 360].filter((one) => one < height);
  return (
    <section class="card" aria-label="Export" data-test="export">
      <header>
        <h2>Export</h2>
        <Button kind="quiet" icon="close" label="Close" onClick={onClose} />
      </header>
      <div class="field-row">
        <TimeField label="From" value={span[0]} onChange={(value) => onSpan(onFrames(table, [value, Math.max(span[1], value)]))} test="export-from" />
        <TimeField label="To" value={span[1]} onChange={(value) => onSpan(onFrames(table, [Math.min(span[0], value), value]))} test="export-to" />
      </div>
      <p class="muted" data-test="export-frames">
        {counted(last - first + 1, "frame")}, {count(first)} to {count(last)}; {duration(span[1] - span[0])}
      </p>
      <div class="field-row">
        {sizes.length > 0 ? (
          <Field label="Size">
            {(id) => (
              <select id={id} value={size} onChange={(event) => setSize(event.currentTarget.value)} data-test="export-size">
                <option value="">as stored</option>
                {sizes.map((one) => <option key={one} value={String(one)}>{`${one} rows`}</option>)}
              </select>
            )}
          </Field>
        ) : null}
        {region ? (
          <label class="check"><input type="checkbox" checked={cropped} onChange={() => setCropped(!cropped)} /> only the region</label>
        ) : null}
      </div>
      {error ? <Failure error={error} /> : (
        <p class="export-facts" data-test="export-facts">
          {length.value === null ? <Spinner small label="Asking for the size" /> : <strong data-test="export-bytes" data-bytes={length.value}>{bytes(length.value)}</strong>}
          <span>{made.data ? how(made.data) : ""}</span>
        </p>
      )}
      <div class="export-end">
        <Button icon="play" onClick={onPlay} test="export-preview">Preview</Button>
        <a class="button primary" href={view(name, file, { download: 1 })} download={downloadName(name, span)} data-test="export-download">Download</a>
      </div>
    </section>
  );
}

/** @param {any} plan */
function how(plan) {
  const made = String(plan.made ?? "");
  if (/cop/.test(made)) return "The packets are copied: no picture is encoded.";
  if (/splic|smart|cut/.test(made)) return "Packets are copied; only the ends are encoded.";
  if (/stitch/.test(made)) return "Tiles are joined: no picture is encoded.";
  return plan.why ? `Encoded: ${plan.why}.` : "Encoded.";
}

/** @param {string} name @param {[number, number]} span */
function downloadName(name, [from, to]) {
  const stem = baseName(name).replace(/\.[^.]*$/, "");
  return `${stem} ${clock(from).replaceAll(":", ".")} to ${clock(to).replaceAll(":", ".")}.mp4`;
}

/** The exact bytes of a file, asked for once the handles rest.
 * @param {string} address */
function useSize(address) {
  const [state, setState] = useState({ address: "", value: /** @type {number | null} */ (null), error: /** @type {any} */ (null) });
  useEffect(() => {
    const abort = new AbortController();
    const wait = setTimeout(() => {
      head(address, abort.signal).then(
        ({ bytes: value }) => setState({ address, value, error: null }),
        (error) => !abort.signal.aborted && setState({ address, value: null, error }),
      );
    }, 250);
    return () => {
      clearTimeout(wait);
      abort.abort();
    };
  }, [address]);
  return state.address === address ? state : { value: null, error: null };
}

/** @param {{label: string, value: number, onChange: (value: number) => void, test: string}} props */
function TimeField({ label, value, onChange, test }) {
  return (
    <Field label={label}>
      {(id) => (
        <input
          id={id}
          value={clock(value)}
          onChange={(event) => {
            const found = parseClock(event.currentTarget.value);
            if (found === null) event.currentTarget.value = clock(value);
            else onChange(found);
          }}
          data-test={test}
        />
      )}
    </Field>
  );
}
