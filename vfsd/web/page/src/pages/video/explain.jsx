// @ts-check
// What it costs to read a region, and tiles that make it cheaper.
import { useState } from "preact/hooks";
import { post, useAnswer } from "../../api.js";
import { bytes, clock, counted, pixels, took, trimmed } from "../../lib/format.js";
import { regionText } from "../../lib/geometry.js";
import { videoApi } from "../../lib/paths.js";
import { may } from "../../session.js";
import { Bars, Button, Failure, Segmented, Spinner } from "../../ui/basics.jsx";
import { toast, toastError } from "../../ui/messages.jsx";
import { viewSpan } from "./spans.js";

/** @type {Record<string, string>} */
const WHY = {
  size: "their size does not suit this read",
  quality: "their quality is below the minimum",
  cost: "the original costs less",
  region: "they lack part of the region",
  pixels: "their pixels differ in kind",
};

/** @param {{name: string, region: import("../../lib/geometry.js").Box, span: [number, number], duration: number, onClose: () => void, onMade: () => void}} props */
export function ExplainPanel({ name, region, span, duration, onClose, onMade }) {
  const text = regionText(region);
  const { data, error, loading, reload } = useAnswer(videoApi(name, "/explain"), { region: text, span: viewSpan(span) });
  return (
    <section class="card" aria-label="Cost of reading the region" data-test="explain">
      <header>
        <h2>Read this region</h2>
        <Button kind="quiet" icon="close" label="Close" onClick={onClose} test="explain-close" />
      </header>
      <p class="muted">
        <span class="mono" data-test="region">{text}</span>, {clock(span[0])} to {clock(span[1])}
      </p>
      {error ? <Failure error={error} onRetry={reload} /> : null}
      {loading ? <div class="waiting"><Spinner /></div> : null}
      {data ? <Cost plan={data} /> : null}
      {may("work") ? <MakeTiles key={`${text} ${span}`} name={name} region={text} span={span} duration={duration} onMade={onMade} /> : null}
    </section>
  );
}

/** @param {{plan: any}} props */
function Cost({ plan }) {
  const { decoded, untiled } = plan;
  const tiled = plan.sources.some((/** @type {any} */ one) => one.source !== "original");
  const rows = [{ name: "From the original", value: untiled.seconds, text: `${pixels(untiled.pixels)}, ${took(untiled.seconds)}`, accent: !tiled }];
  if (tiled) rows.unshift({ name: "As planned", value: decoded.seconds, text: `${pixels(decoded.pixels)}, ${took(decoded.seconds)}`, accent: true });
  return (
    <>
      <Bars rows={rows} />
      <ul class="reasons" data-test="reasons">{reasons(plan).map((line) => <li key={line}>{line}</li>)}</ul>
    </>
  );
}

/** The plan in sentences.
 * @param {any} plan @returns {string[]} */
function reasons(plan) {
  const lines = [];
  /** @type {Map<string, number>} */
  const frames = new Map();
  for (const one of plan.sources) frames.set(one.source, (frames.get(one.source) ?? 0) + one.count);
  for (const [source, count] of frames) lines.push(`${counted(count, "frame")} come from ${source === "original" ? "the original" : source}.`);
  if (plan.time_gain > 1.05) lines.push(`That is ${trimmed(plan.time_gain, 1)} times faster than the original.`);
  if (plan.psnr !== null && plan.psnr !== undefined) lines.push(`The worst frame has ${trimmed(plan.psnr, 1)} dB against the original.`);
  const passed = new Set((plan.passed_over ?? []).map((/** @type {any} */ one) => `${one.source === "tiles" ? "Other tiles" : one.source} (${one.layout}) are not used: ${WHY[one.why] ?? one.why}.`));
  return [...lines, ...[...passed].slice(0, 3)];
}

/** What the tiles are, and what a read costs then.
 * @param {{plan: any}} props */
function Estimate({ plan }) {
  if (plan.segments === 0) return <p class="muted">These tiles exist already.</p>;
  const { read } = plan;
  return (
    <p class="muted" data-test="estimate">
      {counted(plan.segments, "segment")}{plan.psnr ? `, about ${trimmed(plan.psnr, 1)} dB` : ""}.
      {read ? ` A read then decodes ${pixels(read.pixels)} instead of ${pixels(read.untiled_pixels)}.` : ""}
    </p>
  );
}

/** @param {{name: string, region: string, span: [number, number], duration: number, onMade: () => void}} props */
function MakeTiles({ name, region, span, duration, onMade }) {
  const [whole, setWhole] = useState(false);
  const [plan, setPlan] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const order = { kind: "retile", args: { video: name, roi: region, ...(whole ? {} : { span: viewSpan(span) }) } };
  /** @param {boolean} dry */
  const send = async (dry) => {
    setBusy(true);
    try {
      const answer = await post("/api/1/jobs", { ...order, dry_run: dry });
      if (dry) {
        setPlan(answer);
      } else {
        toast("Tiles are being made.", { action: { label: "Jobs", run: () => { location.hash = "#/jobs"; } } });
        setPlan(null);
        onMade();
      }
    } catch (error) {
      toastError(error);
    }
    setBusy(false);
  };
  return (
    <div class="make-tiles">
      <Segmented
        label="Tiles for"
        value={whole ? "whole" : "span"}
        options={[{ value: "span", label: "These seconds" }, { value: "whole", label: `All ${clock(duration, 0)}` }]}
        onChange={(value) => { setWhole(value === "whole"); setPlan(null); }}
      />
      {plan ? <Estimate plan={plan} /> : null}
      {plan && plan.segments !== 0 ? (
        <Button kind="primary" busy={busy} onClick={() => void send(false)} test="make-tiles">
          {`Make tiles: ${[plan.seconds ? took(plan.seconds) : "", plan.bytes ? bytes(plan.bytes) : ""].filter(Boolean).join(", ") || "now"}`}
        </Button>
      ) : plan ? null : (
        <Button busy={busy} onClick={() => void send(true)} test="plan-tiles">What would tiles cost?</Button>
      )}
    </div>
  );
}
