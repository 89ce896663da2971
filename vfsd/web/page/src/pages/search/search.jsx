// @ts-check
// Search for boxes: by label, place in the picture and time.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, post, useAnswer } from "../../api.js";
import { counted, duration } from "../../lib/format.js";
import { query as queryText } from "../../lib/paths.js";
import { setParams } from "../../router.js";
import { may } from "../../session.js";
import { Button, Empty, Failure, Segmented, Spinner } from "../../ui/basics.jsx";
import { VirtualGrid } from "../../ui/grid.jsx";
import { Icon } from "../../ui/icons.jsx";
import { useKeys } from "../../ui/keyboard.jsx";
import { toast, toastError } from "../../ui/messages.jsx";
import { CropCard } from "./crops.jsx";
import { arranged } from "./groups.js";
import { Histogram, merged } from "./histogram.jsx";
import { SearchForm } from "./form.jsx";

/** @typedef {{video: string, frame: number, time: number, at?: string | null, box: [number, number, number, number], label: string,
 *   x: number, y: number, width?: number, height?: number, track?: number | string | null, confidence?: number | null}} Crop */
/** @typedef {Crop & {sprite: string, sheet: [number, number] | null}} ShownCrop */

const BATCH = 24;
const HEIGHT = 120;
/** Bars of the histogram at most, and its finest step in seconds. */
const BARS = 120;
const STEP = 1;
/** Labels to list where one is unknown. */
const LISTED = 20;

/** @param {import("../../routes.js").PageProps} props */
export function SearchPage({ params }) {
  const search = useMemo(
    () => ({ q: params.q, in: params.in, region: params.region, from: params.from, to: params.to }),
    [params.q, params.in, params.region, params.from, params.to],
  );
  const asked = Boolean(params.q || params.in || params.region);
  const group = params.group ?? "video";
  const totals = useAnswer(asked ? "/api/1/detections" : null, { ...search, res: stepOf(search) });
  const crops = useCrops(asked ? search : null);
  const rows = useMemo(() => arranged(crops.items, group, totals.data?.videos), [crops.items, group, totals.data]);
  const [columns, setColumns] = useState(1);
  const lines = useMemo(() => chunked(rows, columns), [rows, columns]);
  useKeys("Search", { g: ["group differently", () => setParams({ group: { video: "track", track: "hour", hour: "none", none: "video" }[group] })] });

  return (
    <div class="search-page" data-test="search-page">
      <h1 class="hidden">Search</h1>
      <SearchForm params={params} />
      {!asked ? (
        <Start />
      ) : (
        <>
          <Summary totals={totals} search={search} group={group} />
          <div class="search-results" ref={(element) => {
            if (element) setColumns(Math.max(Math.floor((element.clientWidth - 24) / 176), 1));
          }}>
            {crops.error ? (
              <div class="padded"><Failure error={crops.error} onRetry={crops.reload} /></div>
            ) : crops.loading && crops.items.length === 0 ? (
              <div class="waiting"><Spinner label="Searching" /></div>
            ) : crops.items.length === 0 ? (
              <Empty icon="search" title="Nothing was found">
                <p>{totals.data?.unknown?.seconds > 0 ? "Parts of the videos were examined by no detector: the answer is not complete." : "Every frame in question was examined."}</p>
              </Empty>
            ) : (
              <VirtualGrid
                key={`${queryText(search)} ${group} ${columns}`}
                label="Results"
                items={lines}
                keyOf={(row) => row.key}
                rowHeight={168}
                heightOf={(row) => (row.heading === null ? 162 : 30)}
                gap={10}
                onEnd={crops.next}
                render={(row) => row.heading ? (
                  <h2 class="group-heading"><span class="cut" title={row.heading}>{row.heading}</span> <span class="muted">{row.note}</span></h2>
                ) : (
                  <div class="crop-row" style={{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}>
                    {row.crops.map((crop) => <CropCard key={`${crop.video} ${crop.frame} ${crop.box}`} crop={crop} height={HEIGHT} />)}
                  </div>
                )}
                test="crops"
              />
            )}
          </div>
        </>
      )}
    </div>
  );
}

/** Seconds of a part of the histogram.
 * @param {{from?: string, to?: string}} search */
function stepOf({ from, to }) {
  const seconds = from && to ? (Date.parse(to) - Date.parse(from)) / 1000 : Number.NaN;
  return Number.isFinite(seconds) ? Math.max(Math.ceil(seconds / BARS), 1) : STEP;
}

/** Rows of the list: headings, and as many crops as have room side by side.
 * @param {{heading: string | null, note: string, crops: ShownCrop[]}[]} groups @param {number} columns */
function chunked(groups, columns) {
  const rows = [];
  for (const [at, one] of groups.entries()) {
    if (one.heading !== null) rows.push({ key: `h${at} ${one.heading}`, heading: one.heading, note: one.note, crops: /** @type {ShownCrop[]} */ ([]) });
    for (let index = 0; index < one.crops.length; index += columns) {
      rows.push({ key: `c${at} ${index}`, heading: null, note: "", crops: one.crops.slice(index, index + columns) });
    }
  }
  return rows;
}

function Start() {
  return (
    <Empty icon="search" title="Find what happens in the videos">
      <p>Search by label, as in <code>car</code>, in all videos or a part of them, and in a region of the picture.</p>
      <p>What no detector has examined is shown as unknown, and never as empty.</p>
    </Empty>
  );
}

/** @param {{totals: ReturnType<typeof useAnswer>, search: Record<string, string | undefined>, group: string}} props */
function Summary({ totals, search, group }) {
  const { data, error } = totals;
  if (error) return <div class="padded"><Failure error={error} onRetry={totals.reload} /></div>;
  const videos = data?.videos ?? [];
  return (
    <div class="search-summary">
      <div class="search-counts">
        <strong data-test="total">{data ? counted(data.total, "box", "boxes") : "…"}</strong>
        <span class="muted">{data ? `in ${counted(videos.length, "video")}` : ""}</span>
        <span class="spread" />
        <Segmented
          label="Group by"
          value={group}
          options={[{ value: "video", label: "Video" }, { value: "track", label: "Track" }, { value: "hour", label: "Hour" }, { value: "none", label: "None" }]}
          onChange={(value) => setParams({ group: value === "video" ? null : value })}
          test="group"
        />
        <CopyLink />
      </div>
      {data?.bins?.counts?.length > 0 ? <Histogram bins={merged(data.bins, BARS)} onSpan={(from, to) => setParams({ from, to })} /> : null}
      {data?.unknown_labels?.length > 0 ? <UnknownLabels unknown={data.unknown_labels} known={data.known_labels} /> : null}
      {data?.unknown?.seconds > 0 ? <Unknown unknown={data.unknown} search={search} /> : null}
    </div>
  );
}

/** Labels of the search that no box has ever had, and those that there are.
 * @param {{unknown: string[], known: string[]}} props */
function UnknownLabels({ unknown, known }) {
  const listed = known.slice(0, LISTED).join(", ") + (known.length > LISTED ? ` and ${known.length - LISTED} more` : "");
  return (
    <div class="note warn" data-test="unknown-labels">
      <Icon name="info" size={16} />
      <span>No box has ever had the label {unknown.join(" or ")}.{known.length > 0 ? ` There are ${listed}.` : ""}</span>
    </div>
  );
}

/** @param {{unknown: {seconds: number, videos: number | {video: string}[]}, search: Record<string, string | undefined>}} props */
function Unknown({ unknown, search }) {
  const videos = Array.isArray(unknown.videos) ? unknown.videos.length : unknown.videos;
  const detect = async () => {
    try {
      await post("/api/1/jobs", { kind: "detect", args: { names: [search.in || "**"], with: "motion" } });
      toast("The detector is queued.", { action: { label: "Jobs", run: () => { location.hash = "#/jobs"; } } });
    } catch (error) {
      toastError(error);
    }
  };
  return (
    <div class="note warn" data-test="unknown">
      <Icon name="info" size={16} />
      <span>Unknown: no detector has examined {duration(unknown.seconds)} in {counted(videos, "video")}.</span>
      <span class="spread" />
      {may("work") ? <button type="button" class="link" onClick={() => void detect()} data-test="detect-unknown">Detect motion there</button> : null}
    </div>
  );
}

/** The address is the search. */
function CopyLink() {
  const save = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The address of this search is copied.");
    } catch {
      toast("The browser did not let the page copy the address.", { tone: "bad", hint: location.href });
    }
  };
  return (
    <Button onClick={() => void save()} test="copy-search">Copy link</Button>
  );
}

/** Crops of a search, in batches that each are one picture.
 * @param {Record<string, string | undefined> | null} search */
function useCrops(search) {
  const [state, setState] = useState({ items: /** @type {ShownCrop[]} */ ([]), after: /** @type {any} */ (null), error: /** @type {any} */ (null), loading: true });
  const [turn, setTurn] = useState(0);
  /** @param {any} answer @returns {ShownCrop[]} */
  const shown = (answer) => answer.items.map((/** @type {Crop} */ one) => ({
    ...one,
    sprite: answer.sprite,
    sheet: answer.width && answer.height ? [answer.width, answer.height] : null,
  }));
  useEffect(() => {
    if (search === null) return undefined;
    const abort = new AbortController();
    setState({ items: [], after: null, error: null, loading: true });
    get("/api/1/crops", { ...search, n: BATCH, h: HEIGHT }, abort.signal).then(
      (found) => setState({ items: shown(found), after: found.next ?? null, error: null, loading: false }),
      (error) => !abort.signal.aborted && setState({ items: [], after: null, error, loading: false }),
    );
    return () => abort.abort();
  }, [search, turn]);
  const next = () => {
    if (state.after === null || state.loading || search === null) return;
    setState((old) => ({ ...old, loading: true }));
    get("/api/1/crops", { ...search, n: BATCH, h: HEIGHT, after: state.after }).then(
      (found) => setState((old) => ({ items: [...old.items, ...shown(found)], after: found.next ?? null, error: null, loading: false })),
      (error) => setState((old) => ({ ...old, error, loading: false })),
    );
  };
  return { ...state, next, reload: () => setTurn((value) => value + 1) };
}
