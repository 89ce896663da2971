// @ts-check
// A video in the grid and in the table.
import { useState } from "preact/hooks";
import { baseName, bytes, count, date, duration, folderOf } from "../../lib/format.js";
import { videoPage, view } from "../../lib/paths.js";
import { Chip } from "../../ui/basics.jsx";
import { Icon } from "../../ui/icons.jsx";
import { Sprite, useSprites } from "../../ui/sprites.jsx";

/** @typedef {import("./library.jsx").Item} Item */

const STRIP = 12;

/** @param {{item: Item, dir: string, chosen: boolean, selecting: boolean, onChoose: (name: string) => void}} props */
export function VideoCard({ item, dir, chosen, selecting, onChoose }) {
  const [over, setOver] = useState(/** @type {number | null} */ (null));
  const folder = folderOf(item.name);
  return (
    <article class={`video-card ${chosen ? "chosen" : ""} ${selecting ? "selecting" : ""}`} data-test="video-card" data-name={item.name}>
      <a href={videoPage(item.name)} class="card-link">
        <div
          class="poster"
          onPointerMove={(event) => {
            if (event.pointerType !== "mouse") return;
            const box = event.currentTarget.getBoundingClientRect();
            setOver(Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.999));
          }}
          onPointerLeave={() => setOver(null)}
        >
          {item.frames ? <Poster name={item.name} /> : <div class="poster-none"><Icon name="info" size={22} /></div>}
          {over === null || !item.frames ? null : <Strip name={item.name} share={over} />}
          {item.seconds === null ? null : <span class="badge">{duration(item.seconds)}</span>}
        </div>
        <div class="card-name cut" title={item.name}>{baseName(item.name)}</div>
      </a>
      <div class="card-facts muted cut">
        {folder && folder !== dir ? <span title={folder}>{folder === dir ? "" : folder.slice(dir ? dir.length + 1 : 0)} · </span> : null}
        {facts(item)}
      </div>
      <div class="card-chips"><Marks item={item} /></div>
      <label class="card-check" title="Select">
        <input type="checkbox" checked={chosen} onChange={() => onChoose(item.name)} aria-label={`Select ${item.name}`} data-test="select" />
      </label>
    </article>
  );
}

/** @param {Item} item */
function facts(item) {
  const parts = [item.width ? `${item.width}×${item.height}` : null, item.codec, bytes(item.size)];
  return parts.filter(Boolean).join(" · ");
}

/** @param {{name: string}} props */
function Poster({ name }) {
  const [state, setState] = useState("waiting");
  return (
    <>
      <img
        src={view(name, "poster.jpg", { w: 480 })}
        alt=""
        loading="lazy"
        decoding="async"
        class={state}
        onLoad={() => setState("there")}
        onError={() => setState("failed")}
      />
      {state === "failed" ? <div class="poster-none"><Icon name="warning" size={22} /></div> : null}
    </>
  );
}

/** Twelve key frames, the one below the pointer in sight.
 * @param {{name: string, share: number}} props */
function Strip({ name, share }) {
  const sprites = useSprites(name);
  if (!sprites) return null;
  const steps = Math.min(STRIP, sprites.frames.length);
  const step = Math.floor(share * steps);
  const index = Math.round((step * (sprites.frames.length - 1)) / Math.max(steps - 1, 1));
  return (
    <div class="strip">
      <FittedSprite sprites={sprites} index={index} />
      <div class="strip-ticks">
        {Array.from({ length: steps }, (_, at) => <span key={at} class={at === step ? "now" : ""} />)}
      </div>
    </div>
  );
}

/** As large as the poster allows.
 * @param {{sprites: import("../../ui/sprites.jsx").Sprites, index: number}} props */
function FittedSprite({ sprites, index }) {
  const [width, setWidth] = useState(0);
  return (
    <div class="strip-fit" ref={(element) => {
      if (!element || width > 0) return;
      const scale = Math.min(element.clientWidth / sprites.width, element.clientHeight / sprites.height);
      setWidth(sprites.width * scale);
    }}>
      {width > 0 ? <Sprite sprites={sprites} index={index} width={width} /> : null}
    </div>
  );
}

/** @param {{item: Item}} props */
function Marks({ item }) {
  const labels = item.labels ?? [];
  const tags = item.tags ?? [];
  return (
    <>
      {item.damaged_frames ? <Chip tone="bad" title={`${count(item.damaged_frames)} frames show damage`}>damaged</Chip> : null}
      {item.held ? <Chip tone="warn" title="Neither changed nor removed until the hold is lifted">held</Chip> : null}
      {item.verified === false ? <Chip title="The file was never decoded in full">not yet verified</Chip> : null}
      {item.reason ? <Chip tone="warn" title={item.reason}>no video</Chip> : null}
      {labels.slice(0, 4).map((label) => <Chip key={`l ${label}`} label={label}>{label}</Chip>)}
      {labels.length > 4 ? <Chip title={labels.slice(4).join(", ")}>{`+${labels.length - 4}`}</Chip> : null}
      {tags.map((tag) => <Chip key={`t ${tag}`}>{tag}</Chip>)}
    </>
  );
}

/** @param {{item: Item, dir: string, chosen: boolean, onChoose: (name: string) => void}} props */
export function VideoRow({ item, dir, chosen, onChoose }) {
  const name = dir ? item.name.slice(dir.length + 1) : item.name;
  const folder = folderOf(name);
  return (
    <div class={chosen ? "video-row chosen" : "video-row"} data-test="video-row" data-name={item.name}>
      <input type="checkbox" checked={chosen} onChange={() => onChoose(item.name)} aria-label={`Select ${item.name}`} data-test="select" />
      <a href={videoPage(item.name)} class="cut" title={item.name}>
        {folder ? <span class="muted">{folder}/</span> : null}{baseName(name)}
      </a>
      <span class="col-length right" title={item.frames === null ? "" : `${count(item.frames)} frames`}>{item.seconds === null ? "" : duration(item.seconds)}</span>
      <span class="col-frame">{item.width ? `${item.width}×${item.height}` : ""} <span class="muted">{item.codec}</span></span>
      <span class="col-size right" title={date(item.modified)}>{bytes(item.size)}</span>
      <span class="col-labels chips"><Marks item={item} /></span>
    </div>
  );
}
