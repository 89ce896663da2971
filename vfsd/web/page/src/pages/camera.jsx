// @ts-check
// One camera: a month, a day, the player, a second camera in step, events, and export.
import { effect, signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer } from "../api.js";
import { labelColor } from "../lib/color.js";
import { count, counted, duration } from "../lib/format.js";
import { Partings } from "../lib/partings.js";
import { escaped, query, videoPage } from "../lib/paths.js";
import { changeInWords, clockAt, dayFromKey, dayOf, daysAfter, instantAt, isoText, longDay, offset, zoneInWords } from "../lib/wallclock.js";
import { go, setParams } from "../router.js";
import { playableCodecs } from "../session.js";
import { Button, Empty, Failure, Spinner } from "../ui/basics.jsx";
import { Calendar } from "../ui/calendar.jsx";
import { DayPlayer } from "../ui/day-player.js";
import { useKeys } from "../ui/keyboard.jsx";
import { Timeline } from "../ui/timeline.jsx";
import { ExportPanel } from "./camera-export.jsx";

/** @typedef {import("../lib/wallclock.js").Day} Day */
/** @typedef {import("../lib/partings.js").Part} Part */

/** @param {string} camera @param {string} [path] */
export function cameraApi(camera, path = "") {
  return `/api/1/cameras/${escaped(camera)}${path}`;
}

/** The parameter `at` is an instant, `day` a day, and `with` a second camera.
 * @param {import("../routes.js").PageProps} props */
export function CameraPage({ rest: camera, params }) {
  const { data, error, reload } = useAnswer("/api/1/cameras");
  const known = data?.items.find((/** @type {any} */ one) => one.name === camera);
  if (error) return <div class="page"><Failure error={error} onRetry={reload} /></div>;
  if (!data) return <div class="waiting"><Spinner /></div>;
  if (!known) {
    return (
      <Empty icon="camera" title="There is no such camera">
        <a href="#/cameras">To the cameras</a>
      </Empty>
    );
  }
  const asked = params.at ? Date.parse(params.at) : NaN;
  const day = dayFromKey(params.day) ?? dayOf(Number.isNaN(asked) ? (known.last ? Date.parse(known.last) - 1 : Date.now()) : asked);
  return (
    <div class="page camera-page" data-test="camera-page">
      <header class="page-head">
        <a href="#/cameras">Cameras</a>
        <span class="muted" aria-hidden="true">/</span>
        <h1 class="cut">{camera}</h1>
        <span class="spread" />
        <SecondChoice cameras={data.items} camera={camera} second={params.with} />
      </header>
      <DayView key={`${camera} ${day.key} ${params.with ?? ""}`} camera={camera} day={day} at={Number.isNaN(asked) ? null : asked} second={params.with} />
    </div>
  );
}

/** @param {{cameras: any[], camera: string, second: string | undefined}} props */
function SecondChoice({ cameras, camera, second }) {
  const others = cameras.filter((one) => one.name !== camera);
  if (others.length === 0) return null;
  return (
    <label class="second-choice">
      <span class="muted">second camera</span>
      <select value={second ?? ""} onChange={(event) => setParams({ with: event.currentTarget.value })} data-test="second">
        <option value="">none</option>
        {others.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
      </select>
    </label>
  );
}

/** The parts of a camera on a day.
 * @param {string | null} camera @param {Day} day */
function useParts(camera, day) {
  const answer = useAnswer(camera === null ? null : cameraApi(camera, "/spans"), { from: isoText(day.start), to: isoText(day.end) });
  const parts = useMemo(() => {
    const rows = (answer.data?.items ?? []).filter((/** @type {any} */ row) => row.kind === "video");
    return rows.map(partOf);
  }, [answer.data]);
  return { ...answer, parts: /** @type {Part[]} */ (parts) };
}

/** @param {any} row @returns {Part} */
function partOf(row) {
  return { name: row.name, start: instantOf(row.start), end: instantOf(row.end), origin: instantOf(row.origin ?? row.start) };
}

/** Milliseconds of an ISO time, with the fractions that Date cuts off.
 * @param {string} text */
function instantOf(text) {
  const fraction = /\.\d{3}(\d+)/.exec(text);
  return Date.parse(text) + (fraction ? Number(`0.${fraction[1]}`) : 0);
}

/** @param {{camera: string, day: Day, at: number | null, second: string | undefined}} props */
function DayView({ camera, day, at, second }) {
  const { parts, data, error, reload } = useParts(camera, day);
  const other = useParts(second ?? null, day);
  const [, setTurn] = useState(0);
  const selection = useMemo(() => signal(/** @type {[number, number] | null} */ (null)), []);
  const player = useMemo(() => (data ? newPlayer(camera, day, parts, at) : null), [data]);
  const follower = useMemo(() => (second && other.data ? newPlayer(second, day, other.parts, at) : null), [other.data]);
  useEffect(() => {
    if (!player || !follower) return undefined;
    return effect(() => follower.keepUp(player.at.value, player.playing.value, player.rate.value));
  }, [player, follower]);
  useEffect(() => setTurn((turn) => turn + 1), [player]);

  return (
    <div class="camera-grid">
      <section class="camera-side" aria-label="Calendar">
        <Calendar camera={camera} day={day} onDay={(chosen) => go(`#/camera/${escaped(camera)}${query({ day: chosen.key, with: second })}`)} />
        <p class="muted zone" data-test="zone">
          All times are in {zoneInWords(day.start)}.
          {changeInWords(day) ? <strong data-test="zone-change"> {changeInWords(day)}</strong> : null}
        </p>
      </section>
      <section class="camera-main" aria-label={longDay(day.start)}>
        <div class="day-head">
          <Button kind="quiet" icon="left" label="Day before" onClick={() => go(`#/camera/${escaped(camera)}${query({ day: daysAfter(day, -1).key, with: second })}`)} test="day-before" />
          <h2 data-test="day">{longDay(day.start)}</h2>
          <Button kind="quiet" icon="right" label="Day after" onClick={() => go(`#/camera/${escaped(camera)}${query({ day: daysAfter(day, 1).key, with: second })}`)} test="day-after" />
          <span class="spread" />
          {data ? <span class="muted" data-test="kept">{keptInWords(parts, day)}</span> : null}
        </div>
        {error ? <Failure error={error} onRetry={reload} /> : null}
        {!data && !error ? <div class="waiting"><Spinner /></div> : null}
        {player && parts.length === 0 ? <NothingThatDay /> : null}
        {player && parts.length > 0 ? (
          <>
            <div class={follower ? "screens two" : "screens"}>
              <Screen player={player} name={camera} />
              {follower ? <Screen player={follower} name={second ?? ""} small /> : null}
            </div>
            <Controls player={player} day={day} />
            <DayTimeline camera={camera} player={player} follower={follower} second={second} day={day} selection={selection} />
            <div class="camera-below">
              <Events camera={camera} day={day} player={player} />
              <ExportPanel camera={camera} day={day} player={player} selection={selection} />
            </div>
          </>
        ) : null}
      </section>
    </div>
  );
}

function NothingThatDay() {
  return (
    <Empty icon="camera" title="Nothing was recorded on this day">
      <p>The calendar shows the days with footage.</p>
    </Empty>
  );
}

/** @param {string} camera @param {Day} day @param {Part[]} parts @param {number | null} at */
function newPlayer(camera, day, parts, at) {
  const address = cameraApi(camera, `/index.m3u8${query({ from: isoText(day.start), to: isoText(day.end), can: playableCodecs().join(",") })}`);
  const player = new DayPlayer(address, parts);
  const first = parts[0]?.start ?? day.start;
  player.at.value = at !== null && at >= day.start && at < day.end ? at : Math.max(first, day.start);
  return player;
}

/** @param {Part[]} parts @param {Day} day */
function keptInWords(parts, day) {
  const partings = new Partings(parts);
  const kept = partings.covered(day.start, day.end) / 1000;
  if (kept === 0) return "";
  const gaps = partings.gaps(day.start, Math.min(day.end, Date.now()));
  return `${duration(kept)} kept in ${counted(parts.length, "file")}, ${gaps.length === 0 ? "without a gap" : `with ${counted(gaps.length, "gap")}`}`;
}

/** @param {{player: DayPlayer, name: string, small?: boolean}} props */
function Screen({ player, name, small = false }) {
  const video = useRef(/** @type {HTMLVideoElement | null} */ (null));
  useEffect(() => (video.current ? player.attach(video.current) : undefined), [player]);
  const part = player.part.value;
  const next = part ? null : player.parts.after(player.at.value);
  const before = part ? null : player.parts.before(player.at.value);
  const address = player.still.value;
  return (
    <figure class="screen" data-test={small ? "screen-second" : "screen"}>
      <div class="stage">
        <video ref={video} playsInline disablePictureInPicture aria-label={`Camera ${name}`} data-test={small ? "video-second" : "video"} />
        {address && part ? <img class="still" src={address} alt={`Frame ${player.frame.value?.index} of ${part.name}`} data-test={small ? "still-second" : "still"} /> : null}
        {part ? null : (
          <div class="no-footage" data-test={small ? "no-footage-second" : "no-footage"}>
            <p>No footage at {clockAt(player.at.value)}</p>
            {before ? <p class="muted">The last picture before is of {clockAt(before.end)}.</p> : null}
            {next && !small ? <Button onClick={() => player.seek(next.start)} test="to-next">Go on at {clockAt(next.start)}</Button> : null}
          </div>
        )}
        {player.error.value ? <p class="screen-error" role="alert" data-test="player-error">{player.error.value}</p> : null}
      </div>
      <figcaption>
        <strong class="cut">{name}</strong>
        <FrameFacts player={player} />
      </figcaption>
    </figure>
  );
}

/** @param {{player: DayPlayer}} props */
function FrameFacts({ player }) {
  const frame = player.frame.value;
  if (!frame) return null;
  return (
    <a class="cut" href={videoPage(frame.name, { frame: frame.index })} title="This frame on the page of the video" data-test="frame" data-video={frame.name} data-frame={frame.index} data-exact={player.exact.value}>
      {frame.name}, frame {count(frame.index)}
    </a>
  );
}

/** @param {{player: DayPlayer, day: Day}} props */
function Controls({ player, day }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  useKeys("Camera", {
    " ": ["play, pause", () => player.toggle()],
    ",": ["one frame back", () => void player.step(-1)],
    ".": ["one frame on", () => void player.step(1)],
    ArrowLeft: ["10 s back", () => player.seek(Math.max(player.at.value - 10000, day.start))],
    ArrowRight: ["10 s on", () => player.seek(Math.min(player.at.value + 10000, day.end))],
    n: ["next recording after a gap", () => player.seek(player.parts.after(player.at.value)?.start ?? player.at.value)],
  });
  const now = player.at.value;
  const playing = player.playing.value;
  return (
    <div class="controls" role="group" aria-label="Player">
      <Button kind="quiet" icon="previous" label="One frame back" keys="," onClick={() => void player.step(-1)} test="frame-back" />
      <Button kind="primary" icon={playing ? "pause" : "play"} label={playing ? "Pause" : "Play"} keys="Space" onClick={() => player.toggle()} test="play" />
      <Button kind="quiet" icon="next" label="One frame on" keys="." onClick={() => void player.step(1)} test="frame-on" />
      <input
        class="clock-field"
        size={12}
        aria-label="Time of day"
        value={draft ?? clockAt(now, 3)}
        onFocus={(event) => event.currentTarget.select()}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onBlur={() => setDraft(null)}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
          if (event.key !== "Enter") return;
          const wanted = instantAt(event.currentTarget.value, day);
          if (wanted !== null) player.seek(wanted);
          setDraft(null);
          event.currentTarget.blur();
        }}
        data-test="clock"
      />
      <span class="muted">{offset(now)}</span>
      <span class="spread" />
      <button
        type="button"
        class="button quiet rate"
        aria-label={`Speed ${player.rate.value}`}
        title="Speed"
        onClick={() => player.setRate(/** @type {Record<number, number>} */ ({ 1: 2, 2: 4, 4: 8, 8: 0.5 })[player.rate.value] ?? 1)}
        data-test="rate"
      >
        {player.rate.value}×
      </button>
      <Button kind="quiet" icon={player.muted.value ? "mute" : "sound"} label={player.muted.value ? "Sound on" : "Sound off"} onClick={() => player.mute(!player.muted.value)} test="mute" />
    </div>
  );
}

/** @param {{camera: string, player: DayPlayer, follower: DayPlayer | null, second: string | undefined, day: Day,
 *   selection: import("@preact/signals").Signal<[number, number] | null>}} props */
function DayTimeline({ camera, player, follower, second, day, selection }) {
  const cursor = useMemo(() => signal(0), [player]);
  useEffect(() => effect(() => {
    cursor.value = (player.at.value - day.start) / 1000;
  }), [player]);
  const { data } = useEvents(camera, day);
  const lanes = useMemo(() => {
    /** @type {import("../ui/timeline.jsx").Lane[]} */
    const found = [coverage(camera, player.parts, day)];
    if (follower && second) found.push(coverage(second, follower.parts, day));
    const labels = [...new Set((data ?? []).map((one) => one.label))].sort();
    for (const label of labels.slice(0, 6)) {
      const spans = (data ?? []).filter((one) => one.label === label).map((one) => ({ from: (one.start - day.start) / 1000, to: (one.end - day.start) / 1000 }));
      found.push({ name: label, height: 10, color: labelColor(label), spans });
    }
    return found;
  }, [player, follower, data]);
  return (
    <Timeline
      label={`${longDay(day.start)} of ${camera}`}
      first={0}
      last={(day.end - day.start) / 1000}
      shortest={10}
      lanes={lanes}
      cursor={cursor}
      selection={selection}
      onSeek={(seconds) => player.seek(day.start + seconds * 1000)}
      onSelect={(span) => { selection.value = span; }}
      format={(seconds, step) => clockAt(day.start + seconds * 1000, step === undefined ? 1 : 0).slice(0, step !== undefined && step >= 60 ? 5 : undefined)}
      test="day-timeline"
    />
  );
}

/** @param {string} camera @param {Partings} parts @param {Day} day @returns {import("../ui/timeline.jsx").Lane} */
function coverage(camera, parts, day) {
  const kept = parts.parts.map((part) => ({ from: (part.start - day.start) / 1000, to: (part.end - day.start) / 1000, color: "--accent" }));
  const gaps = parts.gaps(day.start, Math.min(day.end, Date.now()));
  const missing = gaps.map((gap) => ({ from: (gap.start - day.start) / 1000, to: (gap.end - day.start) / 1000, color: "--bad", share: 0.2, text: "gap" }));
  return { name: camera, title: `Footage of ${camera}`, height: 18, spans: [...missing, ...kept] };
}

/** @typedef {{start: number, end: number, label: string, count: number, video: string, frame: number}} CameraEvent */

/** Events of a camera on a day.
 * @param {string} camera @param {Day} day */
function useEvents(camera, day) {
  const answer = useAnswer(cameraApi(camera, "/events"), { from: isoText(day.start), to: isoText(day.end) });
  const data = useMemo(() => answer.data?.items.map((/** @type {any} */ one) => ({ ...one, start: Date.parse(one.start), end: Date.parse(one.end) })) ?? null, [answer.data]);
  return { ...answer, data: /** @type {CameraEvent[] | null} */ (data) };
}

/** @param {{camera: string, day: Day, player: DayPlayer}} props */
function Events({ camera, day, player }) {
  const { data, error } = useEvents(camera, day);
  const now = player.at.value;
  return (
    <section class="card" aria-label="Events" data-test="events">
      <header><h2>Events</h2>{data ? <span class="muted">{count(data.length)}</span> : null}</header>
      {error ? <Failure error={error} /> : null}
      {data && data.length === 0 ? <p class="muted">No label was found on this day. <code>vfsd detect</code> looks for them.</p> : null}
      <ol class="event-list">
        {(data ?? []).map((one, index) => (
          <li key={index}>
            <button type="button" class="event" aria-current={now >= one.start && now < one.end ? "true" : undefined} onClick={() => player.seek(one.start)} data-test="event">
              <span class="dot" style={{ background: labelColor(one.label) }} />
              <span>{clockAt(one.start)}</span>
              <strong class="cut">{one.label}</strong>
              <span class="spread" />
              <span class="muted">{duration((one.end - one.start) / 1000)}</span>
            </button>
          </li>
        ))}
      </ol>
    </section>
  );
}
