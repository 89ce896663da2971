// @ts-check
// One result: a crop out of a sheet, which plays two seconds below the pointer.
import { useRef, useState } from "preact/hooks";
import { clock, trimmed } from "../../lib/format.js";
import { still, videoPage } from "../../lib/paths.js";
import { labelColor } from "../../lib/color.js";

/** @typedef {import("./search.jsx").ShownCrop} ShownCrop */

const PLAY_SECONDS = 2;
const PLAY_STEPS = 8;

/** @param {{crop: ShownCrop, height: number}} props */
export function CropCard({ crop, height }) {
  const [playing, setPlaying] = useState(/** @type {string | null} */ (null));
  const timer = useRef(0);
  const [x1, y1, x2, y2] = crop.box;
  const width = crop.width ?? Math.round((height * (x2 - x1)) / Math.max(y2 - y1, 1));
  const tall = crop.height ?? height;
  const stop = () => {
    clearTimeout(timer.current);
    timer.current = 0;
    setPlaying(null);
  };
  const play = () => {
    stop();
    const box = `${Math.round(x2 - x1)}x${Math.round(y2 - y1)}+${Math.max(Math.round(x1), 0)}+${Math.max(Math.round(y1), 0)}`;
    const rate = crop.time > 0 ? crop.frame / crop.time : 25;
    const step = Math.max(Math.round((PLAY_SECONDS * rate) / PLAY_STEPS), 1);
    /** @param {number} at */
    const show = async (at) => {
      const picture = new Image();
      picture.src = still(crop.video, crop.frame + (at % PLAY_STEPS) * step, { box, w: 240 });
      // The end of the video is shorter than two seconds.
      await picture.decode().catch(() => undefined);
      if (timer.current === 0) return;
      if (picture.naturalWidth > 0) setPlaying(picture.src);
      timer.current = setTimeout(() => void show(at + 1), 180);
    };
    timer.current = setTimeout(() => void show(0), 160);
  };
  return (
    <a
      class="crop"
      href={videoPage(crop.video, { frame: crop.frame })}
      onPointerEnter={(event) => event.pointerType === "mouse" && play()}
      onPointerLeave={stop}
      data-test="crop"
    >
      <span class="crop-room">
        <Fitted crop={crop} width={width} height={tall} />
        {playing ? <img class="crop-playing" src={playing} alt="" /> : null}
      </span>
      <span class="crop-facts">
        <span class="dot" style={{ background: labelColor(crop.label) }} />
        <span class="cut">{crop.label}</span>
        <span class="hidden">in {crop.video}, frame {crop.frame}, at</span>
        <span class="spread" />
        <span class="muted">{crop.confidence === null || crop.confidence === undefined ? "" : `${trimmed(crop.confidence * 100, 0)} %`} {clock(crop.time, 0)}</span>
      </span>
    </a>
  );
}

/** A part of the sheet as large as the room, scaled as an SVG image.
 * @param {{crop: ShownCrop, width: number, height: number}} props */
function Fitted({ crop, width, height }) {
  return (
    <svg viewBox={`0 0 ${width} ${height}`} class="crop-picture" aria-hidden="true">
      <svg x="0" y="0" width={width} height={height} viewBox={`${crop.x} ${crop.y} ${width} ${height}`} overflow="hidden">
        <image href={crop.sprite} x="0" y="0" width={crop.sheet?.[0]} height={crop.sheet?.[1]} />
      </svg>
    </svg>
  );
}
