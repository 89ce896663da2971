// @ts-check
// The picture of a player, what lies over it, and the controls.
import { useEffect, useRef, useState } from "preact/hooks";
import { clock, count } from "../lib/format.js";
import { Button } from "./basics.jsx";
import { Icon } from "./icons.jsx";

/** @typedef {import("./player-model.js").PlayerModel} PlayerModel */

/**
 * @param {{player: PlayerModel, width: number, height: number,
 *   overlay?: import("preact").ComponentChildren, stage?: import("preact").ComponentChildren}} props
 *   `overlay` covers the picture; `stage` takes its place.
 */
export function Player({ player, width, height, overlay, stage }) {
  const video = useRef(/** @type {HTMLVideoElement | null} */ (null));
  const frame = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => (video.current ? player.attach(video.current) : undefined), [player]);
  const fullScreen = () => {
    if (document.fullscreenElement) void document.exitFullscreen();
    else void frame.current?.requestFullscreen();
  };
  return (
    <div class="player" ref={frame} data-test="player">
      <div class="stage-room">
        <div class="stage" style={{ "--ratio": `${width} / ${height}`, "--ratio-number": width / height }} data-test="stage">
          <video ref={video} preload="auto" playsInline disablePictureInPicture aria-label="Video" data-test="video" />
          <Still player={player} />
          {overlay}
          {stage}
        </div>
      </div>
      <Controls player={player} onFullScreen={fullScreen} />
    </div>
  );
}

/** @param {{player: PlayerModel}} props */
function Still({ player }) {
  const address = player.still.value;
  return address ? <img class="still" src={address} alt={`Frame ${player.frame.value}`} data-test="still" /> : null;
}

/** @param {{player: PlayerModel, onFullScreen: () => void}} props */
function Controls({ player, onFullScreen }) {
  const playing = player.playing.value;
  return (
    <div class="controls" role="group" aria-label="Player">
      <Button kind="quiet" icon="previous" label="One frame back" keys="," onClick={() => player.step(-1)} test="frame-back" />
      <Button kind="primary" icon={playing ? "pause" : "play"} label={playing ? "Pause" : "Play"} keys="Space" onClick={() => player.toggle()} test="play" />
      <Button kind="quiet" icon="next" label="One frame on" keys="." onClick={() => player.step(1)} test="frame-on" />
      <span class="time" data-test="time">
        {clock(player.time.value)} <span class="muted">/ {clock(player.table.duration, 0)}</span>
      </span>
      <FrameNumber player={player} />
      <span class="spread" />
      {player.stillsOnly.value ? <span class="chip warn" title="This browser cannot play the codec: each picture is a still" data-test="stills-only">stills</span> : null}
      <button
        type="button"
        class="button quiet rate"
        title="Speed"
        aria-label={`Speed ${player.rate.value}`}
        onClick={() => player.play(/** @type {Record<number, number>} */ ({ 1: 2, 2: 4, 4: 0.25, 0.25: 0.5, 0.5: 1 })[player.rate.value] ?? 1)}
        data-test="rate"
      >
        {player.backwards.value ? "−" : ""}{player.rate.value}×
      </button>
      {player.stillsOnly.value ? null : <Button kind="quiet" icon={player.muted.value ? "mute" : "sound"} label={player.muted.value ? "Sound on" : "Sound off"} onClick={() => player.mute(!player.muted.value)} test="mute" />}
      <Button kind="quiet" icon="full" label="Full screen" keys="f" onClick={onFullScreen} test="full-screen" />
    </div>
  );
}

/** The true number of the frame in sight, and a field to go to another.
 * @param {{player: PlayerModel}} props */
function FrameNumber({ player }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const exact = player.exact.value;
  return (
    <label class="frame-number" title={exact ? "The picture is exactly this frame" : "The picture of this frame is on its way"}>
      <span class="muted">frame</span>
      <input
        inputMode="numeric"
        size={Math.max(String(player.table.length).length, 3)}
        aria-label="Frame"
        value={draft ?? String(player.frame.value)}
        onFocus={(event) => event.currentTarget.select()}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onBlur={() => setDraft(null)}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
          if (event.key !== "Enter") return;
          const wanted = Number.parseInt(event.currentTarget.value, 10);
          if (Number.isFinite(wanted)) player.seek(wanted);
          setDraft(null);
          event.currentTarget.blur();
        }}
        data-test="frame"
        data-frame={player.frame.value}
        data-exact={exact}
      />
      <span class="muted">/ {count(player.table.length)}</span>
      <span class={exact ? "exact yes" : "exact"} aria-hidden="true">{exact ? <Icon name="check" size={12} /> : null}</span>
    </label>
  );
}
