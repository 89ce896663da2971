// @ts-check
// The page of a video: player, timeline, and what is known about it.
import { useSignal } from "@preact/signals";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer } from "../../api.js";
import { FrameTable, lowerBound } from "../../lib/frames.js";
import { parseRegion, regionText } from "../../lib/geometry.js";
import { original, videoApi, videoPage } from "../../lib/paths.js";
import { playableCodecs } from "../../session.js";
import { Button, Chip, Empty, Failure, Spinner } from "../../ui/basics.jsx";
import { useKeys } from "../../ui/keyboard.jsx";
import { toast } from "../../ui/messages.jsx";
import { Overlay } from "../../ui/overlay.jsx";
import { PlayerModel } from "../../ui/player-model.js";
import { Player } from "../../ui/player.jsx";
import { Sprite, spriteAt, useSprites } from "../../ui/sprites.jsx";
import { Timeline } from "../../ui/timeline.jsx";
import { Compare } from "./compare.jsx";
import { Detections } from "./detections.js";
import { ExplainPanel } from "./explain.jsx";
import { ExportPanel } from "./export.jsx";
import { damageLane, eventTimes, keyFrames, labelLanes, readLane, renditionLane, segmentOf, tileLane, tileLayer } from "./lanes.js";
import { FactsCard, HistoryCard, KeepingCard, LabelCard, labelKey } from "./side.jsx";
import { onFrames } from "./spans.js";

/** @param {import("../../routes.js").PageProps} props */
export function VideoPage({ rest: name, params }) {
  const info = useAnswer(name ? videoApi(name) : null);
  const frames = useAnswer(name ? videoApi(name, "/frames") : null);
  const error = info.error ?? frames.error;
  if (!name) return <Empty title="No video is named" />;
  if (error?.status === 404) {
    return (
      <Empty icon="search" title="There is no such video" test="no-video">
        <p>{name}</p>
        <a href="#/">To the library</a>
      </Empty>
    );
  }
  if (error) return <div class="padded"><Failure error={error} onRetry={() => { info.reload(); frames.reload(); }} /></div>;
  if (!frames.data || (!info.data && !frames.data)) return <div class="waiting"><Spinner /></div>;
  return info.data ? <Loaded key={name} info={info.data} answer={frames.data} params={params} reload={info.reload} /> : <div class="waiting"><Spinner /></div>;
}

/** @param {{info: any, answer: import("../../lib/frames.js").FramesAnswer, params: Record<string, string>, reload: () => void}} props */
function Loaded({ info, answer, params, reload }) {
  const { name, width, height } = info;
  const table = useMemo(() => new FrameTable(answer), [answer]);
  const player = useMemo(() => {
    const made = new PlayerModel(name, table, original(name, { can: playableCodecs().join(",") }));
    const wanted = params.frame !== undefined ? Number.parseInt(params.frame, 10) : table.at(Number.parseFloat(params.t ?? "0"));
    made.frame.value = table.clamp(Number.isFinite(wanted) ? wanted : 0);
    return made;
  }, [name, table]);
  const labels = useAnswer(videoApi(name, "/labels"), { bins: Math.min(table.length, 600) });
  const layout = useAnswer(videoApi(name, "/layout"));
  const renditions = useAnswer(videoApi(name, "/renditions"));
  const reads = useAnswer(videoApi(name, "/reads"), { limit: 500 });
  const sprites = useSprites(name);
  const detections = useMemo(() => new Detections(name, table), [name, table]);

  const boxesOn = useSignal(true);
  const tilesOn = useSignal(false);
  const heatOn = useSignal(false);
  const region = useSignal(parseRegion(params.box));
  const selection = useSignal(/** @type {[number, number] | null} */ (null));
  const hidden = useSignal(/** @type {Set<string>} */ (new Set()));
  const [drawing, setDrawing] = useState(false);
  const [comparing, setComparing] = useState(false);
  const [allLanes, setAllLanes] = useState(false);
  const heat = useAnswer(heatOn.value ? videoApi(name, "/heat") : null, {});

  const segments = /** @type {import("./lanes.js").Segment[]} */ (layout.data?.segments ?? []);
  const rows = /** @type {import("./lanes.js").LabelRow[]} */ (labels.data?.labels ?? []);
  const lanes = useMemo(() => {
    const made = [keyFrames(table)];
    if (labels.data) made.push(...labelLanes(table, labels.data, allLanes ? 1000 : 5));
    if (info.damaged?.length > 0) made.push(damageLane(table, info.damaged));
    if (segments.length > 0) made.push(tileLane(table, segments, width * height));
    if (renditions.data?.items.length > 0) made.push(renditionLane(table, renditions.data.items));
    if (reads.data?.items.length > 0) made.push(readLane(table, reads.data.items));
    return made;
  }, [table, labels.data, layout.data, renditions.data, reads.data, allLanes]);

  const boxLayer = useCallback(() => {
    detections.version.value; // the answer to a request redraws
    if (!boxesOn.value) return [];
    const gone = hidden.value;
    return detections.at(player.frame.value).filter((box) => !gone.has(labelKey(box)));
  }, [detections, player]);
  const tileLayerNow = useCallback(() => {
    if (!tilesOn.value || !layout.data) return null;
    const segment = segmentOf(segments, player.frame.value);
    return segment ? tileLayer(segment) : { tiles: [], stored: false };
  }, [layout.data, player]);
  const heatLayer = useCallback(() => (heatOn.value ? heat.data : null), [heat.data]);
  const regionLayer = useCallback(() => region.value, []);

  const events = useMemo(() => eventTimes(table, rows), [table, rows]);
  /** @param {number} by */
  const toEvent = (by) => {
    const now = player.time.value;
    const index = by > 0 ? lowerBound(events, now + 0.05) : lowerBound(events, now - 0.05) - 1;
    if (events[index] !== undefined) player.seekTime(events[index]);
  };
  /** @param {"in" | "out"} edge */
  const setEdge = (edge) => {
    const frame = player.frame.value;
    const [from, to] = selection.value ?? [0, table.duration];
    const at = edge === "in" ? table.start(frame) : table.end(frame);
    selection.value = onFrames(table, edge === "in" ? [at, Math.max(to, at)] : [Math.min(from, at), at]);
  };
  const startExport = () => {
    const now = player.time.value;
    selection.value = selection.value ? null : onFrames(table, [now, Math.min(now + 10, table.duration)]);
  };
  const playSelection = () => {
    const chosen = selection.value;
    if (!chosen) return;
    player.seekTime(chosen[0] + 1e-6);
    player.play();
    const stop = player.frame.subscribe(() => {
      if (player.time.value < chosen[1] && player.playing.value) return;
      if (player.playing.value) player.seek(table.nearest(chosen[1]) - 1);
      queueMicrotask(() => stop());
    });
  };
  const toggleDrawing = () => {
    setDrawing(!drawing);
    if (drawing) region.value = null;
  };
  useKeys("Video", {
    " ": ["play, pause", () => player.toggle()],
    j: ["play backwards", () => player.reverse()],
    k: ["pause", () => player.pause()],
    l: ["play, faster", () => player.faster()],
    ",": ["one frame back", () => player.step(-1)],
    ".": ["one frame on", () => player.step(1)],
    ArrowLeft: ["a second back", () => player.seekTime(Math.max(player.time.value - 1, 0))],
    ArrowRight: ["a second on", () => player.seekTime(player.time.value + 1)],
    "[": ["export from here", () => setEdge("in")],
    "]": ["export to here", () => setEdge("out")],
    n: ["next event", () => toEvent(1)],
    p: ["previous event", () => toEvent(-1)],
    b: ["boxes", () => { boxesOn.value = !boxesOn.value; }],
    t: ["tiles", () => { tilesOn.value = !tilesOn.value; }],
    h: ["heat: where was read", () => { heatOn.value = !heatOn.value; }],
    r: ["draw a region", toggleDrawing],
    c: ["compare with the original", () => setComparing(!comparing)],
    y: ["copy the link to this frame", () => void copyLink(name, player.frame.value, region.value)],
    f: ["full screen", () => {
      if (document.fullscreenElement) void document.exitFullscreen();
      else void document.querySelector(".player")?.requestFullscreen();
    }],
    Escape: ["", () => { setDrawing(false); region.value = null; selection.value = null; setComparing(false); }],
  });
  useFrameInAddress(name, player);

  const second = explainedSpan(table, player, selection.value, region.value);
  return (
    <div class="video-page" data-test="video-page">
      <div class="video-main">
        <Title info={info} />
        <Player
          player={player}
          width={width}
          height={height}
          overlay={<Overlay width={width} height={height} boxes={boxLayer} tiles={tileLayerNow} heat={heatLayer} region={regionLayer} drawing={drawing} onRegion={(box) => { region.value = box; }} />}
          stage={comparing ? <Compared player={player} segments={segments} region={region.value ?? null} whole={{ x1: 0, y1: 0, x2: width, y2: height }} /> : null}
        />
        <div class="tools" role="toolbar" aria-label="Layers and tools">
          <Button icon="box" keys="b" pressed={boxesOn.value} onClick={() => { boxesOn.value = !boxesOn.value; }} test="boxes">Boxes</Button>
          <Button icon="tiles" keys="t" pressed={tilesOn.value} onClick={() => { tilesOn.value = !tilesOn.value; }} test="tiles">Tiles</Button>
          <Button icon="heat" keys="h" pressed={heatOn.value} onClick={() => { heatOn.value = !heatOn.value; }} test="heat">Heat</Button>
          <Button icon="compare" keys="c" pressed={comparing} onClick={() => setComparing(!comparing)} test="compare-toggle">Compare</Button>
          <span class="spread" />
          <Button icon="draw" keys="r" pressed={drawing} onClick={toggleDrawing} test="draw">Region</Button>
          <Button icon="cut" pressed={selection.value !== null} onClick={startExport} test="export-toggle">Export</Button>
        </div>
        <div class="video-timeline">
          <Timeline
            label="Timeline of the video"
            first={0}
            last={table.duration}
            lanes={lanes}
            cursor={player.time}
            selection={selection}
            shortest={Math.min(table.duration, Math.max(table.end(0) * 8, 0.1))}
            onSeek={(seconds) => player.seekTime(seconds)}
            onSelect={(span) => {
              const before = selection.value;
              const next = onFrames(table, span);
              selection.value = next;
              // The handle that moves is the frame in sight.
              player.seek(before && before[0] !== next[0] ? table.nearest(next[0]) : table.at(next[1] - 1e-6));
            }}
            thumb={sprites ? (seconds) => <Sprite sprites={sprites} index={spriteAt(sprites, seconds)} width={144} /> : undefined}
          />
          {rows.length > 5 ? <button type="button" class="link more-lanes" onClick={() => setAllLanes(!allLanes)}>{allLanes ? "Fewer labels" : `All ${rows.length} labels`}</button> : null}
        </div>
      </div>
      <aside class="video-side" aria-label="About the video">
        {region.value ? (
          <ExplainPanel name={name} region={region.value} span={second} duration={table.duration} onClose={() => { region.value = null; setDrawing(false); }} onMade={layout.reload} />
        ) : drawing ? <p class="note"><span>Draw a rectangle on the picture: the page explains what it costs to read it.</span></p> : null}
        {selection.value ? (
          <ExportPanel name={name} table={table} height={height} span={selection.value} region={region.value} onSpan={(span) => { selection.value = span; }} onPlay={playSelection} onClose={() => { selection.value = null; }} />
        ) : null}
        {labels.error ? <Failure error={labels.error} onRetry={labels.reload} /> : null}
        {labels.data ? <LabelCard labels={labels.data} hidden={hidden.value} onToggle={(key) => { hidden.value = toggled(hidden.value, key); }} /> : null}
        <FactsCard info={info} onFrame={(frame) => player.seek(frame)} />
        <KeepingCard info={info} onChange={reload} />
        <HistoryCard name={name} />
      </aside>
    </div>
  );
}

/** Compares the region, else what tiles have of the frame in sight.
 * @param {{player: PlayerModel, segments: import("./lanes.js").Segment[], region: import("../../lib/geometry.js").Box | null,
 *   whole: import("../../lib/geometry.js").Box}} props */
function Compared({ player, segments, region, whole }) {
  const frame = player.frame.value;
  return <Compare name={player.name} frame={frame} region={region ?? union(segmentOf(segments, frame)) ?? whole} />;
}

/** @param {{info: any}} props */
function Title({ info }) {
  const parts = info.name.split("/");
  return (
    <div class="video-title">
      <h1 data-test="title">
        {parts.slice(0, -1).map((/** @type {string} */ part, /** @type {number} */ index) => (
          <span key={index}><a href={`#/?dir=${encodeURIComponent(parts.slice(0, index + 1).join("/"))}`}>{part}</a><span class="muted"> / </span></span>
        ))}
        <span>{parts[parts.length - 1]}</span>
      </h1>
      {info.damaged_frames > 0 ? <Chip tone="bad">damaged</Chip> : null}
      {info.holds.length > 0 ? <Chip tone="warn">held</Chip> : null}
      <span class="spread" />
      <a class="button quiet" href={original(info.name, { download: 1 })} download={parts[parts.length - 1]} data-test="download">Download</a>
    </div>
  );
}

/** @param {Set<string>} set @param {string} key */
function toggled(set, key) {
  const next = new Set(set);
  if (!next.delete(key)) next.add(key);
  return next;
}

/** The selection, else the second around the frame where a region was drawn.
 * @param {FrameTable} table @param {PlayerModel} player @param {[number, number] | null} chosen @param {any} region
 * @returns {[number, number]} */
function explainedSpan(table, player, chosen, region) {
  const held = useRef({ region: /** @type {any} */ (null), span: /** @type {[number, number]} */ ([0, 0]) });
  if (chosen) return chosen;
  if (held.current.region !== region) {
    const now = player.frame.peek();
    held.current = { region, span: onFrames(table, [table.start(now), Math.min(table.start(now) + 1, table.duration)]) };
  }
  return held.current.span;
}

/** The smallest box around the tiles of a segment.
 * @param {import("./lanes.js").Segment | null} segment */
function union(segment) {
  const boxes = segment ? tileLayer(segment).tiles : [];
  if (boxes.length === 0) return null;
  return {
    x1: Math.min(...boxes.map((box) => box.x1)),
    y1: Math.min(...boxes.map((box) => box.y1)),
    x2: Math.max(...boxes.map((box) => box.x2)),
    y2: Math.max(...boxes.map((box) => box.y2)),
  };
}

/** The address means the frame in sight, once it rests.
 * @param {string} name @param {PlayerModel} player */
function useFrameInAddress(name, player) {
  useEffect(() => {
    let wait = 0;
    let first = true;
    const stop = player.frame.subscribe((frame) => {
      clearTimeout(wait);
      if (first) {
        first = false;
        return;
      }
      wait = setTimeout(() => history.replaceState(null, "", videoPage(name, { frame })), 600);
    });
    return () => {
      clearTimeout(wait);
      stop();
    };
  }, [name, player]);
}

/** @param {string} name @param {number} frame @param {import("../../lib/geometry.js").Box | null} box */
async function copyLink(name, frame, box) {
  const address = new URL(videoPage(name, { frame, box: box ? regionText(box) : null }), location.href).href;
  try {
    await navigator.clipboard.writeText(address);
    toast(`The link to frame ${frame} is copied.`);
  } catch {
    toast("The browser did not let the page copy the link.", { tone: "bad", hint: address });
  }
}
