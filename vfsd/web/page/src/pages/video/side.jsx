// @ts-check
// What is known about a video: labels, facts, tags, policy and history.
import { useState } from "preact/hooks";
import { patch, useAnswer } from "../../api.js";
import { ago, bytes, count, counted, date, duration, trimmed } from "../../lib/format.js";
import { videoApi } from "../../lib/paths.js";
import { may } from "../../session.js";
import { Button, Chip, Facts, Failure, Field } from "../../ui/basics.jsx";
import { Icon } from "../../ui/icons.jsx";
import { Dialog, toast, toastError } from "../../ui/messages.jsx";

/** @param {{labels: import("./lanes.js").Labels, hidden: Set<string>, onToggle: (key: string) => void}} props
 *   `hidden` has keys of `labelKey`. */
export function LabelCard({ labels, hidden, onToggle }) {
  const sources = new Map(labels.sources.map((one) => [one.name, one.examined.reduce((sum, [first, end]) => sum + end - first, 0)]));
  for (const row of labels.labels) if (!sources.has(row.source)) sources.set(row.source, 0);
  return (
    <section class="card" aria-label="Labels" data-test="labels">
      <header><h2>Labels</h2></header>
      {labels.labels.length === 0 ? <p class="muted">None{labels.sources.length > 0 ? "" : ": no detector has examined this video"}.</p> : null}
      {[...sources].map(([source, examined]) => (
        <div key={source} class="source">
          <h3>
            {source}
            <span> · {examined > 0 ? `${counted(examined, "frame")} examined` : "frames examined: unknown"}</span>
          </h3>
          <div class="chips">
            {labels.labels.filter((row) => row.source === source).map((row) => (
              <Chip
                key={row.label}
                label={row.label}
                pressed={!hidden.has(labelKey(row))}
                title={`${counted(row.boxes, "box", "boxes")} on ${counted(row.frames, "frame")}${row.tracks ? `, ${counted(row.tracks, "track")}` : ""}`}
                onClick={() => onToggle(labelKey(row))}
                test="label-toggle"
              >
                {row.label} <span class="muted">{count(row.boxes)}</span>
              </Chip>
            ))}
          </div>
        </div>
      ))}
    </section>
  );
}

/** @param {{source: string, label: string}} row */
export function labelKey(row) {
  return JSON.stringify([row.source, row.label]);
}

/** @param {{info: any, onFrame: (frame: number) => void}} props */
export function FactsCard({ info, onFrame }) {
  const original = info.physical_videos.find((/** @type {any} */ one) => one.role === "original") ?? {};
  const derived = info.physical_videos.filter((/** @type {any} */ one) => one.role !== "original");
  const depth = original.bit_depth && original.bit_depth !== 8 ? ` · ${original.bit_depth} bit` : "";
  return (
    <section class="card" aria-label="Facts" data-test="facts">
      <header><h2>Facts</h2></header>
      <Facts
        rows={[
          ["Picture", `${info.width} × ${info.height}${original.rotation ? `, turned by ${original.rotation}°` : ""}`],
          ["Length", `${duration(info.seconds)} · ${counted(info.frames, "frame")}`],
          ["Rate", `${trimmed(info.rate, 3)} fps${original.variable_rate ? ", variable" : ""}`],
          ["Codec", `${[info.codec, original.profile].filter(Boolean).join(" ")} in ${info.container}`],
          ["Pixels", original.pixel_format ? [`${original.pixel_format}${depth}`, original.color_space].filter(Boolean).join(" · ") : null],
          ["Key frames", info.gops ? `${count(info.keyframes)}, every ${count(info.gops.median)} frames${info.gops.open ? `, ${info.gops.open} open` : ""}` : count(info.keyframes)],
          ["Sound", info.sound ? `${info.sound.codec}, ${counted(info.sound.channels, "channel")}, ${count(info.sound.sample_rate)} Hz` : "none"],
          ["Size", bytes(info.size)],
          ["Derived", derived.length > 0 ? `${bytes(derived.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.size, 0))} in tiles and renditions` : null],
          ["Recorded", info.captured ? <span title={`Clock: ${info.captured.clock}`}>{date(info.captured.time)}</span> : null],
          ["Added", date(info.created)],
          ["Verified", original.verified ? "every frame was decoded" : "not yet"],
          ["Damage", info.damaged_frames > 0 ? <Damage info={info} onFrame={onFrame} /> : null],
          ["Also named", info.names.length > 1 ? info.names.filter((/** @type {string} */ one) => one !== info.name).join(", ") : null],
          ["Digest", <span class="mono" title={info.digest}>{info.digest.slice(0, 16)}…</span>],
        ]}
      />
    </section>
  );
}

/** @param {{info: any, onFrame: (frame: number) => void}} props */
function Damage({ info, onFrame }) {
  return (
    <>
      {counted(info.damaged_frames, "frame")}
      <span class="jumps">
        {info.damaged.slice(0, 8).map((/** @type {[number, number]} */ [first, end]) => (
          <button type="button" class="link" key={first} onClick={() => onFrame(first)}>{end - first > 1 ? `${first}–${end - 1}` : first}</button>
        ))}
      </span>
    </>
  );
}

/** @param {{info: any, onChange: () => void}} props */
export function KeepingCard({ info, onChange }) {
  const [tag, setTag] = useState("");
  const [asking, setAsking] = useState(/** @type {keyof typeof ASKS | null} */ (null));
  const writable = may("change");
  /** @param {any} changes @param {string} done */
  const change = async (changes, done) => {
    try {
      await patch(videoApi(info.name), changes);
      toast(done);
      onChange();
    } catch (error) {
      toastError(error);
    }
  };
  /** @param {Event} event */
  const add = (event) => {
    event.preventDefault();
    const words = tag.split(/[\s,]+/).filter(Boolean);
    setTag("");
    if (words.length > 0) void change({ tags: [...new Set([...info.tags, ...words])] }, `Tagged ${words.join(", ")}`);
  };
  const metadata = Object.entries(info.metadata ?? {});
  return (
    <section class="card" aria-label="Tags and policy" data-test="keeping">
      <header><h2>Tags and policy</h2></header>
      <div class="chips">
        {info.tags.map((/** @type {string} */ one) => (
          <Chip key={one} label={undefined} onRemove={writable ? () => void change({ tags: info.tags.filter((/** @type {string} */ tag) => tag !== one) }, `Removed ${one}`) : undefined}>{one}</Chip>
        ))}
        {info.tags.length === 0 && !writable ? <span class="muted">No tags</span> : null}
        {writable ? (
          <form onSubmit={add} class="tag-form">
            <input value={tag} placeholder="Add a tag" aria-label="Add a tag" onInput={(event) => setTag(event.currentTarget.value)} data-test="tag-add" />
          </form>
        ) : null}
      </div>
      {metadata.length > 0 ? <Facts rows={metadata.map(([key, value]) => [key, String(value)])} /> : null}
      <Facts rows={[["Policy", <>{info.policy}{writable ? <> <button type="button" class="link" onClick={() => setAsking("policy")} data-test="policy-change">change</button></> : null}</>]]} />
      {info.holds.map((/** @type {any} */ hold) => (
        <p class="note warn" key={hold.id ?? hold.reason}><Icon name="lock" size={16} /><span>Held: {hold.reason ?? "no reason given"}</span></p>
      ))}
      {writable ? (
        <div class="buttons">
          <Button icon="lock" onClick={() => setAsking("hold")} test="hold">Hold</Button>
          {info.holds.length > 0 ? <Button onClick={() => setAsking("release")} test="release">Lift holds</Button> : null}
        </div>
      ) : null}
      {asking ? <AskDialog kind={asking} policy={info.policy} onClose={() => setAsking(null)} onSend={change} /> : null}
    </section>
  );
}

const ASKS = {
  hold: {
    title: "Hold this video",
    explains: "A held video is neither changed nor removed until the hold is lifted.",
    field: "Reason",
    button: "Hold",
    done: "Held",
    /** @param {string} value */
    changes: (value) => ({ hold: value }),
  },
  release: {
    title: "Lift all holds of this video",
    explains: "The video then follows its policy again.",
    field: "Reason",
    button: "Lift",
    done: "The holds are lifted",
    /** @param {string} value */
    changes: (value) => ({ hold: null, reason: value }),
  },
  policy: {
    title: "Policy of this video",
    explains: "The policy decides if and when the original is replaced or deleted. Without one, that of the directory holds.",
    field: "Policy",
    button: "Change",
    done: "Policy changed",
    /** @param {string} value */
    changes: (value) => ({ policy: value || null }),
  },
};

/** @param {{kind: keyof typeof ASKS, policy: string, onClose: () => void, onSend: (changes: any, done: string) => Promise<void>}} props */
function AskDialog({ kind, policy, onClose, onSend }) {
  const ask = ASKS[kind];
  const [value, setValue] = useState(kind === "policy" ? policy : "");
  const send = async () => {
    await onSend(ask.changes(value.trim()), ask.done);
    onClose();
  };
  const footer = (
    <>
      <Button onClick={onClose}>Cancel</Button>
      <Button kind="primary" disabled={kind !== "policy" && value.trim() === ""} onClick={() => void send()} test="ask-send">{ask.button}</Button>
    </>
  );
  return (
    <Dialog title={ask.title} onClose={onClose} footer={footer}>
      <p class="muted">{ask.explains}</p>
      <Field label={ask.field}>
        {(id) => <input id={id} value={value} onInput={(event) => setValue(event.currentTarget.value)} data-test="ask-value" />}
      </Field>
    </Dialog>
  );
}

/** @param {{name: string}} props */
export function HistoryCard({ name }) {
  const { data, error, reload } = useAnswer(videoApi(name, "/history"));
  const [all, setAll] = useState(false);
  const items = /** @type {{at: string, kind: string, text: string}[]} */ (data?.items ?? []);
  return (
    <section class="card" aria-label="History" data-test="history">
      <header><h2>History</h2></header>
      {error ? <Failure error={error} onRetry={reload} /> : null}
      {data && items.length === 0 ? <p class="muted">Nothing has changed since the video was added.</p> : null}
      <ol class="history">
        {(all ? items : items.slice(0, 6)).map((one, index) => (
          <li key={index}><span>{one.text}</span> <time class="muted" dateTime={one.at} title={date(one.at)}>{ago(one.at)}</time></li>
        ))}
      </ol>
      {items.length > 6 ? <button type="button" class="link" onClick={() => setAll(!all)}>{all ? "Show fewer" : `Show all ${items.length}`}</button> : null}
    </section>
  );
}
