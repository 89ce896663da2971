// @ts-check
// What is wrong with the store and its machine, and the checks that find it.
import { useState } from "preact/hooks";
import { useAnswer } from "../api.js";
import { ago, count, counted, date } from "../lib/format.js";
import { videoPage } from "../lib/paths.js";
import { Button, Failure, Spinner } from "../ui/basics.jsx";
import { Icon } from "../ui/icons.jsx";

const ICONS = /** @type {Record<string, string>} */ ({ ok: "check", warn: "warning", fail: "close" });
const WORDS = /** @type {Record<string, string>} */ ({ ok: "right", warn: "warning", fail: "failed" });

/** @param {import("../routes.js").PageProps} _props */
export function HealthPage(_props) {
  const doctor = useAnswer("/api/1/health/doctor");
  const [checking, setChecking] = useState(false);
  const { data, error, reload } = useAnswer("/api/1/health", checking ? { fsck: 1 } : {});
  const failed = error ?? doctor.error;
  const checks = doctor.data?.items ?? null;
  const findings = data?.findings ?? null;
  if (failed) return <div class="page"><Failure error={failed} onRetry={() => { reload(); doctor.reload(); }} /></div>;
  return (
    <div class="page health">
      <header class="page-head">
        <h1>Health</h1>
        {checks && data ? <Verdict checks={checks} health={data} /> : null}
      </header>
      <section class="card" aria-label="Checks" data-test="checks">
        <header><h2>Machine and store</h2><span class="muted">as <code>vfsd doctor</code></span></header>
        {checks ? null : <div class="waiting"><Spinner label="Checking the machine" /></div>}
        <ul class="checks">
          {[...(checks ?? [])].sort(bySeverity).map((/** @type {any} */ one) => (
            <li key={one.check} class={one.status} data-test="check">
              <Icon name={ICONS[one.status] ?? "info"} />
              <span class="hidden">{WORDS[one.status] ?? one.status}: </span>
              <div><strong>{one.check}</strong> <span class="muted">{one.message}</span>{one.advice ? <p class="advice">{one.advice}</p> : null}</div>
            </li>
          ))}
        </ul>
      </section>
      <div class="columns">
        <section class="card" aria-label="Findings" data-test="findings">
          <header>
            <h2>Consistency</h2>
            <Button busy={checking && !findings} onClick={() => (checking ? reload() : setChecking(true))} test="start-fsck">Check now</Button>
          </header>
          {findings === null ? <p class="muted">Compares catalog and files, as <code>vfsd fsck</code>; changes nothing.</p> : null}
          {findings?.length === 0 ? <p>Catalog and files agree.</p> : null}
          <ul class="checks">
            {(findings ?? []).map((/** @type {any} */ one, /** @type {number} */ index) => (
              <li key={index} class="fail" data-test="finding"><Icon name="warning" /><div><strong>{one.check}</strong> <span class="muted">{one.message}</span></div></li>
            ))}
          </ul>
        </section>
        <section class="card" aria-label="Damaged videos" data-test="damaged">
          <header><h2>Damaged videos</h2></header>
          {data && data.unverified > 0 ? <p class="muted">{counted(data.unverified, "video")} not yet decoded in full; a mount does that when it is idle, and <code>vfsd verify</code> at once.</p> : null}
          {data?.damaged.length === 0 ? <p class="muted">No frame with damage is known.</p> : null}
          <ul class="plain-rows">
            {(data?.damaged ?? []).map((/** @type {any} */ one) => (
              <li key={one.name} data-test="damaged-video"><a class="cut" href={videoPage(one.name)}>{one.name}</a><span class="spread" /><span>{count(one.damaged)} of {counted(one.frames, "frame")}</span></li>
            ))}
          </ul>
        </section>
        <section class="card" aria-label="Scrub" data-test="scrub">
          <header><h2>Checksums</h2></header>
          <p>{data ? scrubText(data.scrub) : null}</p>
          {data && data.bad_files > 0 ? <p class="job-error" role="alert">{counted(data.bad_files, "file")} with bytes that differ from their checksums.</p> : null}
          <p class="muted"><code>vfsd scrub</code> compares all of them.</p>
        </section>
        <section class="card" aria-label="Mounts" data-test="mounts">
          <header><h2>Mounts</h2></header>
          {data?.mounts.length === 0 ? <p class="muted">The store is not mounted on this machine.</p> : null}
          <ul class="plain-rows">
            {(data?.mounts ?? []).map((/** @type {any} */ one) => <li key={one.where ?? one.pid}><span class="mono cut">{one.where ?? `process ${one.pid}`}</span><span class="spread" /><span class="muted">process {one.pid}</span></li>)}
          </ul>
        </section>
      </div>
    </div>
  );
}

/** @param {{checks: any[], health: any}} props */
function Verdict({ checks, health }) {
  const bad = checks.filter((one) => one.status === "fail").length + (health.findings?.length ?? 0) + health.bad_files;
  const warned = checks.filter((one) => one.status === "warn").length;
  return (
    <p class={`health-verdict ${bad > 0 ? "bad" : warned > 0 ? "warn" : "good"}`} data-test="verdict">
      <Icon name={bad > 0 ? "warning" : warned > 0 ? "info" : "check"} />
      {bad > 0 ? `${counted(bad, "problem")} to look at` : warned > 0 ? `Working, with ${counted(warned, "warning")}` : "Everything is right"}
    </p>
  );
}

/** @param {any} scrub */
function scrubText(scrub) {
  if (!scrub || scrub.files === 0) return "There are no files yet.";
  if (scrub.never === scrub.files) return "The stored bytes were never compared with their checksums.";
  const rest = scrub.never > 0 ? ` ${counted(scrub.never, "file")} were never compared.` : "";
  return `All else was compared within ${ago(scrub.oldest).replace(" ago", "")} (the oldest on ${date(scrub.oldest)}).${rest}`;
}

/** @param {any} a @param {any} b */
function bySeverity(a, b) {
  const order = ["fail", "warn", "ok"];
  return order.indexOf(a.status) - order.indexOf(b.status);
}
