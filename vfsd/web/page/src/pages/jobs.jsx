// @ts-check
// Work of the store: proposals of the tuner, jobs that run or ran, and what the tuner has made.
import { useEffect, useState } from "preact/hooks";
import { post, remove, useAnswer } from "../api.js";
import { listen } from "../events.js";
import { ago, bytes, clock, counted, date, took } from "../lib/format.js";
import { videoPage } from "../lib/paths.js";
import { may } from "../session.js";
import { Button, Chip, Empty, Facts, Failure, Spinner } from "../ui/basics.jsx";
import { Dialog, toast, toastError } from "../ui/messages.jsx";

/** @param {import("../routes.js").PageProps} _props */
export function JobsPage(_props) {
  return (
    <div class="page jobs">
      <header class="page-head"><h1>Jobs</h1></header>
      <Running />
      <Tuner />
    </div>
  );
}

const TONES = /** @type {Record<string, "plain" | "warn" | "bad" | "good" | "accent">} */ ({
  running: "accent", waiting: "plain", paused: "warn", done: "good", failed: "bad", cancelled: "plain",
});

function Running() {
  const { data, error, reload } = useAnswer("/api/1/jobs");
  const [changed, setChanged] = useState(/** @type {Record<string, any>} */ ({}));
  useEffect(() => listen("job", (job) => {
    setChanged((all) => ({ ...all, [job.id]: { ...all[job.id], ...job } }));
    if (job.state !== "running") reload();
  }), []);
  if (error) return <Failure error={error} onRetry={reload} />;
  if (!data) return <div class="waiting"><Spinner /></div>;
  const listed = data.items.map((/** @type {any} */ one) => ({ ...one, ...(changed[one.id] ?? {}) }));
  const known = new Set(listed.map((/** @type {any} */ one) => one.id));
  const jobs = [...Object.values(changed).filter((one) => !known.has(one.id) && one.kind), ...listed];
  const now = jobs.filter((one) => ["running", "waiting", "paused"].includes(one.state));
  const past = jobs.filter((one) => !now.includes(one));
  return (
    <>
      <section class="card" aria-label="Running" data-test="running">
        <header><h2>Running</h2><span class="muted">{now.length || ""}</span></header>
        {now.length === 0 ? <p class="muted">Nothing is running. Detection, tiles, renditions and checks that are started on these pages, or planned with <code>--on later</code>, appear here.</p> : null}
        <ul class="plain-rows">{now.map((one) => <Job key={one.id} job={one} onChange={reload} />)}</ul>
      </section>
      {past.length > 0 ? (
        <section class="card" aria-label="Past" data-test="past">
          <header><h2>Past</h2></header>
          <ul class="plain-rows">{past.slice(0, 50).map((one) => <Job key={one.id} job={one} onChange={reload} />)}</ul>
        </section>
      ) : null}
    </>
  );
}

/** @param {{job: any, onChange: () => void}} props */
function Job({ job, onChange }) {
  const [open, setOpen] = useState(false);
  const [done, all] = job.progress ?? [0, 0];
  const active = ["running", "waiting", "paused"].includes(job.state);
  /** @param {() => Promise<any>} action */
  const run = (action) => action().then(onChange, toastError);
  return (
    <li class="job" data-test="job" data-state={job.state}>
      <div class="job-head">
        <Chip tone={TONES[job.state] ?? "plain"}>{job.state}</Chip>
        <strong>{job.kind}</strong>
        <span class="cut">{job.what}</span>
        <span class="spread" />
        <span class="muted" title={job.started ? date(job.started) : undefined}>{job.ended ? ago(job.ended) : job.started ? `since ${ago(job.started)}` : ""}</span>
        {job.state === "running" && job.order ? <Button kind="quiet" icon="pause" label="Pause" disabled={!may("work")} onClick={() => run(() => post(`/api/1/jobs/${job.id}/pause`))} test="job-pause" /> : null}
        {job.state === "paused" ? <Button kind="quiet" icon="play" label="Go on" disabled={!may("work")} onClick={() => run(() => post(`/api/1/jobs/${job.id}/resume`))} test="job-resume" /> : null}
        {active ? <Button kind="quiet" icon="close" label="Stop" disabled={!may("work")} onClick={() => run(() => remove(`/api/1/jobs/${job.id}`))} test="job-stop" /> : null}
        {job.order || job.result ? <Button kind="quiet" icon="info" label="Details" expanded={open} onClick={() => setOpen(!open)} test="job-details" /> : null}
      </div>
      {active && all > 0 ? <progress value={done} max={all} aria-label={`${job.kind}: ${done} of ${all}`}>{Math.round((done / all) * 100)} %</progress> : null}
      {job.error ? <p class="job-error" role="alert">{job.error}</p> : null}
      {open ? <Order order={job.order ?? job.result} /> : null}
    </li>
  );
}

/** @param {{order: any}} props */
function Order({ order }) {
  const outcomes = Object.entries(order.outcomes ?? {}).filter(([, value]) => Number(value) > 0).map(([name, value]) => `${value} ${name}`).join(", ");
  return (
    <Facts rows={[
      ["Units", order.units === undefined ? null : `${counted(order.units, "unit")}: ${outcomes}`],
      ["CPU time", order.cpu_seconds === undefined ? null : `${took(order.cpu_seconds)} of about ${took(order.cost ?? 0)}`],
      ["Processes", order.running ? String(order.running) : null],
      ["Frames", order.frames ? order.frames.toLocaleString("en") : null],
      ["Written", order.bytes_written ? bytes(order.bytes_written) : null],
      ["Failures", order.failures?.length ? order.failures.map((/** @type {any} */ one) => one.error).slice(0, 3).join("; ") : null],
    ]} />
  );
}

function Tuner() {
  const { data, error, reload } = useAnswer("/api/1/tune");
  const [undoing, setUndoing] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  useEffect(() => listen("job", (job) => {
    if (job.kind === "tune" && job.state !== "running") reload();
  }), []);
  if (error) return <Failure error={error} onRetry={reload} />;
  if (!data) return <div class="waiting"><Spinner /></div>;
  const { proposals, history } = data;
  const apply = async () => {
    setBusy(true);
    try {
      await post("/api/1/jobs", { kind: "tune", args: { names: [] } });
      toast("The tuner is at work.");
    } catch (problem) {
      toastError(problem);
    }
    setBusy(false);
  };
  const undo = async () => {
    setBusy(true);
    try {
      await post("/api/1/tune/undo", { id: undoing.id });
      toast("The tiles of this decision are no longer used.");
      setUndoing(null);
      reload();
    } catch (problem) {
      toastError(problem);
    }
    setBusy(false);
  };
  const allowed = proposals.filter((/** @type {any} */ one) => one.allowed);
  return (
    <>
      <section class="card" aria-label="Proposals" data-test="proposals">
        <header>
          <h2>Proposals of the tuner</h2>
          {allowed.length > 0 ? <Button kind="primary" icon="tiles" busy={busy} disabled={!may("work")} onClick={() => void apply()} test="tune-apply">Make {allowed.length === 1 ? "it" : `all ${allowed.length}`}</Button> : null}
        </header>
        {proposals.length === 0 ? (
          <Empty icon="tiles" title="No tiles would pay now">
            <p>The tuner looks at reads of regions and of small sizes. It proposes tiles that would save more time than they cost.</p>
          </Empty>
        ) : (
          <div class="table-scroll">
            <table class="data">
              <thead><tr><th>Video</th><th>Why</th><th class="right">Cost</th><th class="right">Size</th><th class="right">Saves</th><th><span class="hidden">Budget</span></th></tr></thead>
              <tbody>
                {proposals.map((/** @type {any} */ one, /** @type {number} */ index) => (
                  <tr key={index} data-test="proposal">
                    <td><a href={videoPage(one.name, { t: one.span[0] })}>{one.name}</a><div class="muted">{clock(one.span[0], 0)} to {clock(one.span[1], 0)}</div></td>
                    <td>{reasonText(one)}<div class="muted">{counted(one.reads, "read")}</div></td>
                    <td class="right">{took(one.seconds)}</td>
                    <td class="right">{bytes(Math.round(one.bytes))}</td>
                    <td class="right">{took(one.saved)}<div class="muted">of {took(one.spent)}</div></td>
                    <td>{one.allowed ? null : <Chip tone="warn" title="It does not fit the budget">over budget</Chip>}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {history.length > 0 ? (
        <section class="card" aria-label="Decisions" data-test="history">
          <header><h2>Decisions</h2></header>
          <ul class="plain-rows">
            {history.map((/** @type {any} */ one) => (
              <li key={one.id} data-test="decision">
                <div class="hold-facts">
                  <a class="cut" href={videoPage(one.name, { t: one.span[0] })}>{one.name}</a>
                  <span class="muted">{reasonText(one)}; {took(one.seconds)}, {bytes(one.bytes)}, {one.maker === "tune" ? "on request" : "when idle"}, {ago(one.at)}</span>
                </div>
                <span class="spread" />
                <Chip tone={one.state === "in use" ? "good" : "plain"}>{one.state}</Chip>
                {one.state === "in use" ? <Button kind="quiet" disabled={!may("work")} onClick={() => setUndoing(one)} test="undo">Undo</Button> : null}
              </li>
            ))}
          </ul>
        </section>
      ) : null}
      {undoing ? (
        <Dialog title="Undo this decision?" onClose={() => setUndoing(null)} test="undo-dialog" footer={<Button kind="danger" busy={busy} onClick={() => void undo()} test="undo-confirm">Undo</Button>}>
          <p>Reads of <strong>{undoing.name}</strong> use the tiles from before again. The tuner does not make these tiles again soon.</p>
        </Dialog>
      ) : null}
    </>
  );
}

/** @param {any} one a proposal or a decision */
function reasonText(one) {
  const found = (one.reasons ?? []).map((/** @type {any} */ reason) => {
    if (reason.label) return `reads of ${reason.label}`;
    if (reason.size) return `whole frames in ${reason.size[0]}×${reason.size[1]}`;
    return reason.region ? `reads of ${reason.region}` : "whole frames";
  });
  const names = [...new Set(found)];
  return names.length > 2 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ") || "past reads";
}
