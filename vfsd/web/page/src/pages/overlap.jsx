// @ts-check
// Pairs of videos that show the same place: what they share, and joining them.
import { useEffect, useMemo, useState } from "preact/hooks";
import { post, useAnswer } from "../api.js";
import { listen } from "../events.js";
import { bytes, clock, counted, date } from "../lib/format.js";
import { FrameTable } from "../lib/frames.js";
import { placed } from "../lib/homography.js";
import { still, videoApi, videoPage } from "../lib/paths.js";
import { psnrText, verdictText } from "../lib/verdict.js";
import { may } from "../session.js";
import { Button, Chip, Empty, Facts, Failure, Field, Spinner } from "../ui/basics.jsx";
import { Dialog, toast, toastError } from "../ui/messages.jsx";

const FOUND = "vfsd-overlap";

/** @param {import("../routes.js").PageProps} _props */
export function OverlapPage(_props) {
  const { data, error, reload } = useAnswer("/api/1/overlap");
  const [found, setFound] = useState(/** @type {any} */ (remembered()));
  const [searching, setSearching] = useState(false);
  useEffect(() => listen("job", (job) => {
    if (/^overlap/.test(job.kind) && job.state !== "running") reload();
  }), []);
  const joined = data?.items ?? [];
  const pairs = [
    ...joined.map((/** @type {any} */ one) => ({ left: one.left, right: one.right, joined: one, known: found?.items.find((/** @type {any} */ pair) => isSame(pair, one)) ?? null })),
    ...(found?.items ?? []).filter((/** @type {any} */ pair) => !joined.some((/** @type {any} */ one) => isSame(pair, one))).map((/** @type {any} */ pair) => ({ left: pair.left, right: pair.right, joined: null, known: pair })),
  ];
  /** @param {any} answer */
  const onFound = (answer) => {
    const kept = { ...answer, at: Date.now() };
    sessionStorage.setItem(FOUND, JSON.stringify(kept));
    setFound(kept);
    setSearching(false);
  };
  return (
    <div class="page">
      <header class="page-head">
        <h1>Overlap</h1>
        <p class="muted">{found ? `${counted(found.videos, "video")} compared on ${date(found.at)}` : "Cameras that see the same place"}</p>
        <span class="spread" />
        <Button icon="search" onClick={() => setSearching(true)} test="overlap-search">Look for pairs</Button>
      </header>
      {error ? <Failure error={error} onRetry={reload} /> : null}
      {!data && !error ? <div class="waiting"><Spinner /></div> : null}
      {data && pairs.length === 0 ? (
        <Empty icon="overlap" title={found ? "No two of these videos show the same place" : "No pair of videos is known to overlap"}>
          <p>A search compares the pictures of videos, two by two, at a few moments each.</p>
        </Empty>
      ) : null}
      <ul class="pairs">
        {pairs.map((pair) => <Pair key={`${pair.left}\n${pair.right}`} {...pair} onChange={reload} />)}
      </ul>
      {searching ? <SearchDialog onClose={() => setSearching(false)} onFound={onFound} /> : null}
    </div>
  );
}

function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(FOUND) ?? "null");
  } catch {
    return null;
  }
}

/** @param {any} a @param {any} b */
function isSame(a, b) {
  return (a.left === b.left && a.right === b.right) || (a.left === b.right && a.right === b.left);
}

/** @param {{left: string, right: string, joined: any, known: any, onChange: () => void}} props */
function Pair({ left, right, joined, known, onChange }) {
  const asked = useAnswer(known ? null : "/api/1/overlap/pair", { left, right });
  const pair = known ?? asked.data?.pair ?? null;
  const [share, setShare] = useState(0.5);
  const moments = pair?.moments ?? [];
  const [moment, setMoment] = useState(0);
  const { headline, text } = verdictText({ ...(pair ?? {}), joined });
  const tone = joined ? "good" : pair?.verdict === "refused" ? "plain" : pair?.verdict === "partly" ? "warn" : "accent";
  return (
    <li class="card pair" data-test="pair">
      <div class="pair-picture">
        {asked.error ? <Failure error={asked.error} onRetry={asked.reload} /> : null}
        {pair ? <Overlay pair={pair} moment={moments[moment]} share={share} /> : asked.loading ? <div class="waiting"><Spinner label="Comparing pictures" /></div> : null}
        {pair ? (
          <div class="pair-controls">
            <label class="moment">
              <span>left</span>
              <input type="range" min={0} max={1} step={0.01} value={share} aria-label="Left, mean, right" aria-valuetext={`${Math.round(share * 100)} % of the right one`} onInput={(event) => setShare(Number(event.currentTarget.value))} data-test="pair-share" />
              <span>right</span>
            </label>
            <Button kind="quiet" onClick={() => setShare(0.5)} test="pair-mean">Mean</Button>
            <span class="spread" />
            <span class="muted">at {clock(moments[moment]?.seconds ?? 0, 1)}</span>
          </div>
        ) : null}
      </div>
      <div class="pair-facts">
        <p class="pair-names"><a class="cut" href={videoPage(left)}>{left}</a> <span class="muted">and</span> <a class="cut" href={videoPage(right)}>{right}</a></p>
        <h2 data-test="verdict">{headline} <Chip tone={tone}>{joined ? "joined" : pair?.verdict ?? "unknown"}</Chip></h2>
        {text ? <p>{text}</p> : null}
        {moments.length > 0 ? <Agreement moments={moments} chosen={moment} onChoose={setMoment} /> : null}
        <Facts rows={[
          ["Common part", pair ? `${percent(pair.shares[0])} of the left, ${percent(pair.shares[1])} of the right` : null],
          ["Agreement", pair ? `${psnrText(pair.psnr[0])} left, ${psnrText(pair.psnr[1])} right` : null],
          ["Standpoint", pair ? (pair.fixed ? "fixed to each other" : "moving to each other") : null],
          ["Movement", movementText(pair?.movement)],
          ["Stored joined", joined ? `${counted(joined.frames, "frame")} in ${bytes(joined.bytes)}, besides the originals` : null],
        ]} />
        <Actions left={left} right={right} joined={joined} verdict={pair?.verdict} onChange={onChange} />
      </div>
    </li>
  );
}

/** The right picture over the left one, moved to where it shows the same place.
 * @param {{pair: any, moment: any, share: number}} props */
function Overlay({ pair, moment, share }) {
  const [sizes, setSizes] = useState(/** @type {Record<string, [number, number]>} */ ({}));
  const [width, setWidth] = useState(0);
  /** @param {HTMLDivElement | null} element */
  const measure = (element) => {
    if (element && element.clientWidth !== width) setWidth(element.clientWidth);
  };
  useEffect(() => {
    const changed = () => setWidth(0);
    addEventListener("resize", changed);
    return () => removeEventListener("resize", changed);
  }, []);
  const known = sizes.left && sizes.right;
  const place = known ? placed(moment.homography, sizes.left, sizes.right, width) : null;
  /** @param {string} side */
  const loaded = (side) => (/** @type {Event} */ event) => {
    const { naturalWidth, naturalHeight } = /** @type {HTMLImageElement} */ (event.currentTarget);
    setSizes((all) => ({ ...all, [side]: [naturalWidth, naturalHeight] }));
  };
  const left = useStill(pair.left, moment.seconds);
  const right = useStill(pair.right, moment.seconds);
  return (
    <div class="overlay-stage" ref={measure} style={{ height: place ? `${place.height}px` : undefined }} data-test="overlay">
      <img src={right} alt={`${pair.right} at ${clock(moment.seconds, 1)}`} onLoad={loaded("right")} class="overlay-right" style={place ? { transform: place.right, visibility: "visible" } : {}} />
      <img src={left} alt={`${pair.left} at ${clock(moment.seconds, 1)}`} onLoad={loaded("left")} class="overlay-left" style={place ? { transform: place.left, visibility: "visible" } : {}} />
      {/* Again on top: only the common part mixes. */}
      <img src={right} alt="" class="overlay-common" style={place ? { transform: place.right, opacity: share, visibility: "visible" } : {}} data-test="overlay-right" />
    </div>
  );
}

/** The address of the frame that a video shows at a time.
 * @param {string} name @param {number} seconds */
function useStill(name, seconds) {
  const { data } = useAnswer(videoApi(name, "/frames"));
  const table = useMemo(() => (data ? new FrameTable(data) : null), [data]);
  return table ? still(name, table.at(seconds)) : undefined;
}

/** @param {{moments: any[], chosen: number, onChoose: (index: number) => void}} props */
function Agreement({ moments, chosen, onChoose }) {
  const worst = moments.map((one) => Math.min(...one.psnr));
  const most = 50;
  return (
    <figure class="agreement" data-test="agreement">
      <figcaption class="muted">Agreement over time, dB; at 30 a pair can be joined</figcaption>
      <div class="agreement-bars">
        <span class="agreement-line" style={{ bottom: `${(30 / most) * 100}%` }} aria-hidden="true" />
        {moments.map((one, index) => (
          <button
            type="button"
            key={index}
            aria-label={`${clock(one.seconds, 1)}: ${psnrText(worst[index])}`}
            title={`${clock(one.seconds, 1)}: ${psnrText(worst[index])}`}
            aria-pressed={index === chosen}
            class={worst[index] < 30 ? "poor" : ""}
            onClick={() => onChoose(index)}
          >
            <span style={{ height: `${(Math.min(Math.max(worst[index], 2), most) / most) * 100}%` }} />
          </button>
        ))}
      </div>
    </figure>
  );
}

/** @param {{left: string, right: string, joined: any, verdict: string | undefined, onChange: () => void}} props */
function Actions({ left, right, joined, verdict, onChange }) {
  const [plan, setPlan] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  if (!joined && !["join", "partly"].includes(verdict ?? "")) return null;
  /** @param {() => Promise<any>} action @param {(answer: any) => void} done */
  const run = async (action, done) => {
    setBusy(true);
    try {
      done(await action());
    } catch (error) {
      toastError(error);
    }
    setBusy(false);
  };
  const job = { kind: "overlap-join", args: { left, right } };
  const join = () => run(() => post("/api/1/jobs", job), () => {
    setPlan(null);
    toast("The videos are being joined; see Jobs.");
  });
  const split = () => run(() => post("/api/1/overlap/split", { left, right }), () => {
    setPlan(null);
    onChange();
  });
  return (
    <div class="buttons">
      {joined ? (
        <Button icon="cut" busy={busy} disabled={!may("work")} onClick={() => setPlan({})} test="split">Split…</Button>
      ) : (
        <Button icon="overlap" busy={busy} disabled={!may("work")} onClick={() => void run(() => post("/api/1/jobs", { ...job, dry_run: true }), setPlan)} test="join">Join…</Button>
      )}
      {plan ? (
        <Dialog
          title={joined ? "Delete the joined data?" : "Join these videos?"}
          onClose={() => setPlan(null)}
          test="join-dialog"
          footer={<Button kind={joined ? "danger" : "primary"} busy={busy} onClick={() => void (joined ? split() : join())} test="join-confirm">{joined ? "Split" : "Join"}</Button>}
        >
          {joined ? (
            <p>{bytes(joined.bytes)} are freed. The originals stay; both videos are read from them again.</p>
          ) : (
            <>
              <p>The common part is stored once for reads of either video. The originals stay, so the store grows{plan.bytes === undefined ? "." : <> by about <strong>{bytes(plan.bytes)}</strong>.</>}</p>
              <Facts rows={[
                ["Frames", plan.frames === undefined ? null : counted(plan.frames, "frame")],
                ["Quality", plan.psnr ? `at least ${psnrText(Math.min(...plan.psnr))} in each picture` : null],
                ["Originals", plan.original_bytes === undefined ? null : `${bytes(plan.original_bytes)} for the same frames`],
                ["Time", plan.seconds === undefined ? null : `about ${Math.round(plan.seconds)} s`],
              ]} />
            </>
          )}
        </Dialog>
      ) : null}
    </div>
  );
}

/** @param {{onClose: () => void, onFound: (answer: any) => void}} props */
function SearchDialog({ onClose, onFound }) {
  const [names, setNames] = useState("**");
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const start = async () => {
    setBusy(true);
    setFailed(null);
    try {
      onFound(await post("/api/1/overlap/find", { names: names.split(/\s+/).filter(Boolean) }));
    } catch (error) {
      setFailed(error);
    }
    setBusy(false);
  };
  return (
    <Dialog title="Look for pairs" onClose={onClose} test="search-dialog" footer={<Button kind="primary" busy={busy} onClick={() => void start()} test="search-start">Search</Button>}>
      <Field label="Videos" hint="Names or patterns such as yard/**, with spaces between them. Each video is compared with each other one, which takes about a second a video.">
        {(id) => <input id={id} value={names} onInput={(event) => setNames(event.currentTarget.value)} data-test="search-names" />}
      </Field>
      {failed ? <Failure error={failed} /> : null}
    </Dialog>
  );
}

/** @param {number} share */
function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** @param {number | null | undefined} movement */
function movementText(movement) {
  if (movement === undefined) return null;
  if (movement === null) return "nothing moves";
  if (movement > 0.6) return "the same objects move in both";
  return movement > 0.3 ? "partly the same objects move" : "unrelated";
}
