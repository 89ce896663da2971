// @ts-check
// Where the bytes are, what the budgets keep, what the policies delete and when, and holds.
import { useEffect, useState } from "preact/hooks";
import { post, put, remove, useAnswer } from "../api.js";
import { ago, bytes, count, counted, date, day } from "../lib/format.js";
import { videoPage } from "../lib/paths.js";
import { byteCount } from "../lib/sizes.js";
import { may } from "../session.js";
import { Button, Failure, Field, Spinner, StackedBar } from "../ui/basics.jsx";
import { Dialog, toast, toastError } from "../ui/messages.jsx";

const KINDS = /** @type {[string, string, string][]} */ ([
  ["originals", "originals", "#3d6cb9"],
  ["tiles", "tiles", "#2a9d8f"],
  ["renditions", "renditions", "#8ab17d"],
  ["joined", "joined", "#e0a030"],
  ["retired", "kept for a rollback", "#c46a4a"],
  ["pinned", "pinned", "#9a6fb0"],
]);

/** @param {import("../routes.js").PageProps} _props */
export function StoragePage(_props) {
  return (
    <div class="page storage">
      <header class="page-head"><h1>Storage</h1></header>
      <Space />
      <div class="columns">
        <Budget />
        <Holds />
      </div>
      <Ageing />
      <Log />
    </div>
  );
}

function Space() {
  const { data, error, reload } = useAnswer("/api/1/storage");
  if (error) return <Failure error={error} onRetry={reload} />;
  if (!data) return <div class="waiting"><Spinner /></div>;
  const parts = KINDS.map(([key, name, color]) => ({ name, value: data[key] ?? 0, color, text: bytes(data[key] ?? 0) })).filter((part) => part.value > 0);
  const own = parts.reduce((sum, part) => sum + part.value, 0);
  const dirs = data.dirs ?? [];
  const most = Math.max(...dirs.map((/** @type {any} */ one) => one.originals + one.derived), 1);
  return (
    <section class="card" aria-label="Space" data-test="space">
      <header>
        <h2>{bytes(own)} in {counted(data.videos, "video")}</h2>
        <span class="muted">{bytes(data.free)} free on the disk</span>
      </header>
      <StackedBar label="Bytes of the store" parts={parts} />
      {dirs.length > 0 ? (
        <table class="data dirs" data-test="dirs">
          <thead><tr><th>Directory</th><th class="right">Videos</th><th>Bytes</th><th class="right">Originals</th><th class="right">Derived</th></tr></thead>
          <tbody>
            {dirs.map((/** @type {any} */ one) => (
              <tr key={one.dir}>
                <td>{one.dir ? <a href={`#/?dir=${encodeURIComponent(one.dir)}`}>{one.dir}</a> : <span class="muted">root</span>}</td>
                <td class="right">{count(one.videos)}</td>
                <td class="dir-bar">
                  <span style={{ width: `${(one.originals / most) * 100}%`, background: KINDS[0][2] }} />
                  <span style={{ width: `${(one.derived / most) * 100}%`, background: KINDS[1][2] }} />
                </td>
                <td class="right">{bytes(one.originals)}</td>
                <td class="right">{one.derived ? bytes(one.derived) : <span class="muted">–</span>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </section>
  );
}

function Budget() {
  const { data, error, reload } = useAnswer("/api/1/budget");
  const whole = data?.items.find((/** @type {any} */ one) => one.name === null) ?? null;
  if (error) return <Failure error={error} onRetry={reload} />;
  return (
    <section class="card" aria-label="Budget" data-test="budget">
      <header>
        <h2>Budget of derived data</h2>
        {whole ? <span class="muted">{whole.limit === "none" ? "no limit" : whole.limit}</span> : null}
      </header>
      {whole ? <WhatIf key={whole.limit} budget={whole} onChange={reload} /> : <div class="waiting"><Spinner /></div>}
      {data && data.items.length > 1 ? (
        <ul class="plain-rows">
          {data.items.filter((/** @type {any} */ one) => one.name !== null).slice(0, 8).map((/** @type {any} */ one) => (
            <li key={one.name}><a class="cut" href={videoPage(one.name)}>{one.name}</a><span class="spread" /><span>{bytes(one.used)}</span><span class="muted">of {one.allowed === null ? "no limit" : bytes(one.allowed)}</span></li>
          ))}
        </ul>
      ) : null}
    </section>
  );
}

/** A slider whose consequence is shown while it moves.
 * @param {{budget: any, onChange: () => void}} props */
function WhatIf({ budget, onChange }) {
  // The end of the slider means no limit.
  const most = Math.max(budget.used * 2, (budget.allowed ?? 0) * 1.25, 1 << 20);
  const [limit, setLimit] = useState(/** @type {number | null} */ (budget.allowed));
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const limitText = limit === null ? "none" : String(limit);
  const shown = limit === null ? "no limit" : bytes(limit);
  useEffect(() => {
    const timer = setTimeout(() => {
      post("/api/1/budget/what-if", { limit: limitText, names: [] }).then((found) => setAnswer({ ...found.items[0], asked: limitText }), toastError);
    }, 120);
    return () => clearTimeout(timer);
  }, [limit]);
  const apply = async () => {
    setBusy(true);
    try {
      await put("/api/1/budget", { name: null, limit: limitText });
      toast(limit === null ? "Derived data has no limit." : `The budget is ${shown}.`);
      onChange();
    } catch (error) {
      toastError(error);
    }
    setBusy(false);
  };
  /** @param {string} text */
  const typed = (text) => {
    const value = byteCount(text);
    if (value !== null) setLimit(value);
    else if (/^\s*(none|no limit)\s*$/i.test(text)) setLimit(null);
    setDraft(null);
  };
  const current = answer && answer.asked === limitText;
  const kept = Math.min(budget.used, limit ?? Infinity);
  return (
    <div class="what-if">
      <StackedBar
        label="Use of the budget"
        total={Math.max(limit ?? most, budget.used)}
        parts={[
          { name: "stays", value: kept, color: KINDS[1][2], text: bytes(kept) },
          { name: "goes", value: budget.used - kept, color: "#c46a4a", text: bytes(budget.used - kept) },
        ].filter((part) => part.value > 0)}
      />
      <div class="slider-row">
        <input type="range" min={0} max={most} step={Math.max(Math.round(most / 400), 1)} value={Math.min(limit ?? most, most)} aria-label="Budget" aria-valuetext={shown} onInput={(event) => setLimit(Number(event.currentTarget.value) >= most ? null : Number(event.currentTarget.value))} data-test="budget-slider" />
        <input class="size-field" aria-label="Budget in bytes" value={draft ?? shown} onInput={(event) => setDraft(event.currentTarget.value)} onBlur={(event) => draft !== null && typed(event.currentTarget.value)} onKeyDown={(event) => { if (event.key === "Enter") event.currentTarget.blur(); }} data-test="budget-field" />
      </div>
      <p aria-live="polite" data-test="what-if">
        {!current ? <span class="muted">computing</span> : answer.segments === 0 ? "Nothing would be deleted." : (
          <>
            <strong>{counted(answer.segments, "segment")}</strong> of {bytes(answer.bytes)} would be deleted. They saved {answer.saved < 0.05 ? "no time" : `${answer.saved.toFixed(1)} CPU s`} in past reads.
          </>
        )}
      </p>
      {current && answer.gone?.length > 0 ? (
        <details>
          <summary>What would go, in order</summary>
          <ul class="plain-rows">{answer.gone.slice(0, 50).map((/** @type {any} */ one, /** @type {number} */ index) => (
            <li key={index}><a class="cut" href={videoPage(one.name)}>{one.name}</a><span class="muted">{one.what}, frames {one.frames[0]} to {one.frames[1]}</span><span class="spread" /><span>{bytes(one.bytes)}</span></li>
          ))}</ul>
        </details>
      ) : null}
      <div class="buttons"><Button disabled={!may("change") || limit === budget.allowed} busy={busy} onClick={() => void apply()} test="budget-set">Set budget</Button></div>
    </div>
  );
}

function Holds() {
  const { data, error, reload } = useAnswer("/api/1/holds");
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState(/** @type {any} */ (null));
  return (
    <section class="card" aria-label="Holds" data-test="holds">
      <header><h2>Holds</h2><Button icon="lock" disabled={!may("change")} onClick={() => setAdding(true)} test="hold-add">Hold a video</Button></header>
      {error ? <Failure error={error} onRetry={reload} /> : null}
      {data && data.items.length === 0 ? <p class="muted">No video is protected. A hold keeps a video from deletion, replacement and writing.</p> : null}
      <ul class="plain-rows">
        {(data?.items ?? []).map((/** @type {any} */ one) => (
          <li key={one.id} data-test="hold">
            <div class="hold-facts"><a class="cut" href={videoPage(one.name)}>{one.name}</a><span class="muted">{one.reason || "no reason given"}, since {day(one.since)}</span></div>
            <span class="spread" />
            <Button kind="quiet" disabled={!may("change")} onClick={() => setRemoving(one)} test="hold-remove">Remove</Button>
          </li>
        ))}
      </ul>
      {adding ? <HoldDialog title="Hold a video" fields onClose={() => setAdding(false)} onDone={async (name, reason) => { await post("/api/1/holds", { name, reason }); reload(); }} /> : null}
      {removing ? <HoldDialog title={`Remove the hold of ${removing.name}`} onClose={() => setRemoving(null)} onDone={async (_, reason) => { await remove(`/api/1/holds/${removing.id}`, { reason }); reload(); }} /> : null}
    </section>
  );
}

/** @param {{title: string, fields?: boolean, onClose: () => void, onDone: (name: string, reason: string) => Promise<void>}} props */
function HoldDialog({ title, fields = false, onClose, onDone }) {
  const [name, setName] = useState("");
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const done = async () => {
    setBusy(true);
    try {
      await onDone(name.trim(), reason.trim());
      onClose();
    } catch (error) {
      toastError(error);
    }
    setBusy(false);
  };
  return (
    <Dialog title={title} onClose={onClose} test="hold-dialog" footer={<Button kind="primary" busy={busy} disabled={reason.trim() === "" || (fields && name.trim() === "")} onClick={() => void done()} test="hold-confirm">{fields ? "Hold" : "Remove the hold"}</Button>}>
      {fields ? <Field label="Video">{(id) => <input id={id} value={name} placeholder="cam1/2026-05-01/10-00-00.mp4" onInput={(event) => setName(event.currentTarget.value)} data-test="hold-name" />}</Field> : null}
      <Field label="Reason" hint="Kept in the log.">{(id) => <input id={id} value={reason} onInput={(event) => setReason(event.currentTarget.value)} data-test="hold-reason" />}</Field>
    </Dialog>
  );
}

const STAGES = /** @type {Record<string, string>} */ ({ delete: "deleted", replace: "replaced by a smaller encoding", decay: "kept sharp in parts only", held: "due, but held", left: "left as they are" });

function Ageing() {
  const { data, error, reload } = useAnswer("/api/1/age");
  const policies = useAnswer("/api/1/policy");
  return (
    <section class="card" aria-label="Ageing" data-test="age">
      <header><h2>What goes, and when</h2></header>
      {error ? <Failure error={error} onRetry={reload} /> : null}
      {!data && !error ? <div class="waiting"><Spinner /></div> : null}
      {data && data.due.length + data.later.length === 0 ? <p class="muted">No policy deletes or replaces anything. Footage stays until the disk is full.</p> : null}
      {data ? (
        <ol class="schedule">
          {grouped(data.due).map((group) => (
            <li key={`${group.stage} ${group.reason}`} data-test="age-due">
              <strong>now</strong>
              <span>{counted(group.videos, "video")}, {bytes(group.bytes)}: {STAGES[group.stage] ?? group.stage}</span>
              <span class="muted cut">{group.reason}</span>
            </li>
          ))}
          {data.later.map((/** @type {any} */ one, /** @type {number} */ index) => (
            <li key={index} data-test="age-later">
              <strong title={date(one.at)}>{day(one.at)}</strong>
              <span>{counted(one.videos, "video")}, {bytes(one.bytes)}: {STAGES[one.stage] ?? one.stage}</span>
              <span class="muted cut">{one.dir ? `${one.dir}: ` : ""}{one.reason}</span>
            </li>
          ))}
        </ol>
      ) : null}
      {policies.data?.items.length > 0 ? (
        <details open>
          <summary>Policies</summary>
          <table class="data" data-test="policies">
            <thead><tr><th>Path</th><th>Policy</th></tr></thead>
            <tbody>{policies.data.items.map((/** @type {any} */ one) => <tr key={one.name}><td>{one.name || "the whole store"}</td><td class="mono">{one.policy}</td></tr>)}</tbody>
          </table>
        </details>
      ) : null}
    </section>
  );
}

/** Rows of `vfsd age`, those of one stage and reason together.
 * @param {any[]} rows @returns {{stage: string, reason: string, videos: number, bytes: number}[]} */
function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.stage}\n${row.reason ?? ""}`;
    const group = groups.get(key) ?? { stage: row.stage, reason: row.reason ?? "", videos: 0, bytes: 0 };
    group.videos++;
    group.bytes += row.bytes;
    groups.set(key, group);
  }
  return [...groups.values()];
}

function Log() {
  const age = useAnswer("/api/1/age");
  const evictions = useAnswer("/api/1/budget/log");
  const rows = [
    ...(age.data?.log ?? []).map((/** @type {any} */ one) => ({ at: one.at, what: one.action, name: one.name, why: one.reason, bytes: one.saved })),
    ...(evictions.data?.items ?? []).map((/** @type {any} */ one) => ({ at: one.at, what: `${one.what} deleted`, name: one.name, why: `budget of the ${one.why}`, bytes: one.bytes })),
  ].sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
  return (
    <section class="card" aria-label="Log" data-test="storage-log">
      <header><h2>Log</h2></header>
      {rows.length === 0 ? <p class="muted">No original was changed, and no derived data was deleted.</p> : (
        <table class="data">
          <thead><tr><th>When</th><th>What</th><th>Video</th><th>Why</th><th class="right">Bytes</th></tr></thead>
          <tbody>
            {rows.slice(0, 100).map((row, index) => (
              <tr key={index}><td title={date(row.at)}>{ago(row.at)}</td><td>{row.what}</td><td>{row.name}</td><td class="muted">{row.why}</td><td class="right">{row.bytes === null || row.bytes === undefined ? "" : bytes(row.bytes)}</td></tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
