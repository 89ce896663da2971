// @ts-check
// Export of exactly these seconds over several files, and their protection.
import { useEffect, useState } from "preact/hooks";
import { head, post, useAnswer } from "../api.js";
import { bytes, counted, duration } from "../lib/format.js";
import { escaped, view } from "../lib/paths.js";
import { clockAt, instantAt, isoText } from "../lib/wallclock.js";
import { may } from "../session.js";
import { Button, Failure, Field } from "../ui/basics.jsx";
import { Dialog, toast, toastError } from "../ui/messages.jsx";

/** @typedef {import("../lib/wallclock.js").Day} Day */
/** @typedef {import("../ui/day-player.js").DayPlayer} DayPlayer */

const LENGTH = 60; // seconds that a new selection has

/** @param {{camera: string, day: Day, player: DayPlayer,
 *   selection: import("@preact/signals").Signal<[number, number] | null>}} props */
export function ExportPanel({ camera, day, player, selection }) {
  const chosen = selection.value;
  const begin = () => {
    const from = (player.at.value - day.start) / 1000;
    selection.value = [from, Math.min(from + LENGTH, (day.end - day.start) / 1000)];
  };
  return (
    <section class="card" aria-label="Export" data-test="export">
      <header>
        <h2>Export and protect</h2>
        {chosen ? <Button kind="quiet" icon="close" label="No selection" onClick={() => { selection.value = null; }} test="export-clear" /> : null}
      </header>
      {chosen ? <Chosen camera={camera} day={day} player={player} selection={selection} chosen={chosen} /> : (
        <>
          <p class="muted">Choose a time from and to, over any number of files. The size is known before the download.</p>
          <p><Button icon="cut" onClick={begin} test="export-begin">Select from {clockAt(player.at.value)}</Button></p>
        </>
      )}
    </section>
  );
}

/** @param {{camera: string, day: Day, player: DayPlayer, chosen: [number, number],
 *   selection: import("@preact/signals").Signal<[number, number] | null>}} props */
function Chosen({ camera, day, player, selection, chosen }) {
  const [from, to] = chosen.map((seconds) => day.start + seconds * 1000);
  const [protecting, setProtecting] = useState(false);
  // The handles send many spans while they are dragged.
  const [settled, setSettled] = useState(/** @type {[number, number] | null} */ (null));
  useEffect(() => {
    const timer = setTimeout(() => setSettled([from, to]), 250);
    return () => clearTimeout(timer);
  }, [from, to]);
  const span = settled ? { from: isoText(settled[0]), to: isoText(settled[1]) } : null;
  const { data, error } = useAnswer(span ? `/api/1/cameras/${escaped(camera)}/export-plan` : null, span ?? {});
  const isCurrent = settled?.[0] === from && settled?.[1] === to;
  const whole = useWhole(camera, data && isCurrent && data.parts.length > 1 ? span : null);
  const names = player.parts.parts.filter((part) => part.start < to && part.end > from).map((part) => part.name);
  /** @param {number} side @param {string} text */
  const change = (side, text) => {
    const instant = instantAt(text, day);
    if (instant === null) return;
    const seconds = (instant - day.start) / 1000;
    const next = /** @type {[number, number]} */ ([...chosen]);
    next[side] = seconds;
    if (next[0] < next[1]) selection.value = next;
  };
  return (
    <>
      <div class="field-row">
        <Field label="From">{(id) => <ClockField id={id} instant={from} onChange={(text) => change(0, text)} test="export-from" />}</Field>
        <Field label="To">{(id) => <ClockField id={id} instant={to} onChange={(text) => change(1, text)} test="export-to" />}</Field>
      </div>
      <p class="export-size" data-test="export-size" aria-live="polite">
        {error ? null : data && isCurrent ? <Plan plan={data} seconds={(to - from) / 1000} whole={whole} /> : <span class="muted">{duration((to - from) / 1000)}: the size is being computed</span>}
      </p>
      {data && isCurrent && data.parts.length > 1 ? (
        <ul class="plain-rows parts">
          {data.parts.map((/** @type {any} */ part, /** @type {number} */ index) => (
            <li key={index}>
              <a class="cut" href={partPath(part)} download data-test="export-part" data-bytes={part.bytes}>{part.name}</a>
              <span class="spread" />
              <span class="muted">{duration(part.span[1] - part.span[0])}, {bytes(part.bytes)}</span>
            </li>
          ))}
        </ul>
      ) : null}
      {error ? <Failure error={error} /> : null}
      <div class="buttons">
        {data && isCurrent && data.bytes > 0 ? (
          <Button kind="primary" icon="download" onClick={() => (whole?.bytes ? download(whole.path) : downloadAll(data.parts))} test="export-download">
            Download {bytes(whole?.bytes ?? data.bytes)}
          </Button>
        ) : null}
        {whole?.bytes ? <Button icon="download" onClick={() => downloadAll(data.parts)} test="export-parts">Each file</Button> : null}
        <Button icon="lock" onClick={() => setProtecting(true)} disabled={!may("change") || names.length === 0} test="protect">Protect</Button>
      </div>
      {may("change") ? null : <p class="muted small">This session may not protect videos.</p>}
      {protecting ? <Protect names={names} from={from} to={to} onClose={() => setProtecting(false)} /> : null}
    </>
  );
}

/** The one file of a span over several videos: its size, or the reason why they cannot share one.
 * @param {string} camera @param {{from: string, to: string} | null} span
 * @returns {{path: string, bytes?: number, why?: string} | null} */
function useWhole(camera, span) {
  const path = span ? view(camera, `t=${span.from}-${span.to}.mp4`, { download: 1 }) : null;
  const [found, setFound] = useState(/** @type {{path: string, bytes?: number, why?: string} | null} */ (null));
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    head(path, abort.signal).then(
      (answer) => setFound({ path, bytes: answer.bytes }),
      (error) => {
        if (!abort.signal.aborted) setFound({ path, why: error.message });
      },
    );
    return () => abort.abort();
  }, [path]);
  return found?.path === path ? found : null;
}

/** @param {string} path */
function download(path) {
  const link = document.createElement("a");
  link.href = path;
  link.download = "";
  document.body.append(link);
  link.click();
  link.remove();
}

/** Starts a download of each part, in order.
 * @param {any[]} parts */
function downloadAll(parts) {
  for (const [index, part] of parts.entries()) {
    // Browsers drop all but the last of downloads that begin at once.
    setTimeout(() => download(partPath(part)), index * 400);
  }
}

/** @param {any} part */
function partPath(part) {
  return view(part.name, part.view, { download: 1 });
}

/** @param {{plan: any, seconds: number, whole: {bytes?: number, why?: string} | null}} props */
function Plan({ plan, seconds, whole }) {
  const encoded = plan.parts.filter((/** @type {any} */ part) => part.made !== "copied").length;
  if (plan.parts.length === 0) return <>There is no footage in these {duration(seconds)}.</>;
  return (
    <>
      <strong>{bytes(plan.bytes)}</strong> ({plan.bytes.toLocaleString("en")} bytes), {duration(seconds)} in {counted(plan.parts.length, "file")}
      {plan.gaps.length > 0 ? `, with ${counted(plan.gaps.length, "gap")} left out` : ""}.{" "}
      {whole?.bytes ? `${bytes(whole.bytes)} as one file. ` : whole?.why ? "These files cannot be joined to one. " : ""}
      {encoded === 0 ? "All pictures are copied as they are." : "Pictures are copied; only those before the first key frame of a part are encoded."}
    </>
  );
}

/** @param {{id: string, instant: number, onChange: (text: string) => void, test: string}} props */
function ClockField({ id, instant, onChange, test }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const shown = clockAt(instant, instant % 1000 >= 1 ? 3 : 0);
  return (
    <input
      id={id}
      value={draft ?? shown}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") event.currentTarget.blur();
      }}
      onBlur={() => {
        if (draft !== null) onChange(draft);
        setDraft(null);
      }}
      data-test={test}
    />
  );
}

/** @param {{names: string[], from: number, to: number, onClose: () => void}} props */
function Protect({ names, from, to, onClose }) {
  const [reason, setReason] = useState(`${clockAt(from)} to ${clockAt(to)}`);
  const [busy, setBusy] = useState(false);
  const add = async () => {
    setBusy(true);
    try {
      for (const name of names) await post("/api/1/holds", { name, reason });
      toast(`${counted(names.length, "video")} protected: neither policy nor command deletes or changes them.`);
      onClose();
    } catch (error) {
      toastError(error);
    }
    setBusy(false);
  };
  return (
    <Dialog
      title={`Protect ${counted(names.length, "video")}`}
      onClose={onClose}
      test="protect-dialog"
      footer={<Button kind="primary" icon="lock" busy={busy} disabled={reason.trim() === ""} onClick={() => void add()} test="protect-add">Protect</Button>}
    >
      <p>A hold keeps whole videos from deletion, replacement and writing, until it is removed on the page Storage.</p>
      <ul class="mono">{names.slice(0, 12).map((name) => <li key={name} class="cut">{name}</li>)}{names.length > 12 ? <li>and {names.length - 12} more</li> : null}</ul>
      <Field label="Reason">{(id) => <input id={id} value={reason} onInput={(event) => setReason(event.currentTarget.value)} data-test="protect-reason" />}</Field>
    </Dialog>
  );
}
