// @ts-check
// The fields of a search.
import { useEffect, useState } from "preact/hooks";
import { useAnswer } from "../../api.js";
import { parseRegion, regionText } from "../../lib/geometry.js";
import { view } from "../../lib/paths.js";
import { setParams } from "../../router.js";
import { Button, Chip, Field } from "../../ui/basics.jsx";
import { Icon } from "../../ui/icons.jsx";
import { Dialog } from "../../ui/messages.jsx";
import { Overlay } from "../../ui/overlay.jsx";

/** @param {{params: Record<string, string>}} props */
export function SearchForm({ params }) {
  const [what, setWhat] = useState(params.q ?? "");
  const [where, setWhere] = useState(params.in ?? "");
  const [choosing, setChoosing] = useState(false);
  useEffect(() => setWhat(params.q ?? ""), [params.q]);
  useEffect(() => setWhere(params.in ?? ""), [params.in]);
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    setParams({ q: what.trim(), in: where.trim() });
  };
  return (
    <form class="search-form" role="search" onSubmit={submit}>
      <div class="with-icon search-what">
        <Icon name="search" size={16} />
        <input type="search" value={what} placeholder="Label, as in car" aria-label="Label" onInput={(event) => setWhat(event.currentTarget.value)} data-search-field autoFocus data-test="search-q" />
      </div>
      <div class="with-icon search-where">
        <Icon name="folder" size={16} />
        <input value={where} placeholder="In all videos, or cam1/**" aria-label="Videos, as a pattern" onInput={(event) => setWhere(event.currentTarget.value)} data-test="search-in" />
      </div>
      <Button icon="draw" pressed={Boolean(params.region)} onClick={() => setChoosing(true)} test="search-region">Region</Button>
      <Button kind="primary" type="submit" test="search-go">Search</Button>
      {params.region || params.from || params.to ? (
        <div class="chips search-chips">
          {params.region ? <Chip tone="accent" onRemove={() => setParams({ region: null })}>{`in ${params.region}`}</Chip> : null}
          {params.from || params.to ? <Chip tone="accent" onRemove={() => setParams({ from: null, to: null })}>{`${shortTime(params.from)} to ${shortTime(params.to)}`}</Chip> : null}
        </div>
      ) : null}
      {choosing ? <RegionDialog pattern={params.in} region={params.region} onClose={() => setChoosing(false)} /> : null}
    </form>
  );
}

/** @param {string | undefined} time */
function shortTime(time) {
  if (!time) return "…";
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? time : date.toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
}

/** A region is drawn on a picture of the first video in question.
 * @param {{pattern: string | undefined, region: string | undefined, onClose: () => void}} props */
function RegionDialog({ pattern, region, onClose }) {
  const { data } = useAnswer("/api/1/videos", { glob: pattern, limit: 1 });
  const [box, setBox] = useState(parseRegion(region));
  const video = data?.items[0];
  const apply = () => {
    setParams({ region: box ? regionText(box) : null });
    onClose();
  };
  const footer = (
    <>
      <Button onClick={() => setBox(null)}>Clear</Button>
      <Button kind="primary" onClick={apply} test="region-apply">Use this region</Button>
    </>
  );
  return (
    <Dialog title="Region of the picture" onClose={onClose} footer={footer} wide>
      {video ? <RegionPicture video={video} box={box} onBox={setBox} /> : <p class="muted">No video matches the pattern.</p>}
      <Field label="Region" hint="Width x height + left + top, in pixels of the displayed frame">
        {(id) => <input id={id} value={box ? regionText(box) : ""} onChange={(event) => setBox(parseRegion(event.currentTarget.value))} data-test="region-text" />}
      </Field>
    </Dialog>
  );
}

/** @param {{video: {name: string, width: number, height: number}, box: import("../../lib/geometry.js").Box | null,
 *   onBox: (box: import("../../lib/geometry.js").Box | null) => void}} props */
function RegionPicture({ video, box, onBox }) {
  const [layers] = useState(() => ({ none: () => null, boxes: () => [] }));
  return (
    <div class="region-picture" style={{ aspectRatio: `${video.width} / ${video.height}` }}>
      <img src={view(video.name, "poster.jpg", { w: 640 })} alt={`A frame of ${video.name}`} />
      <Overlay width={video.width} height={video.height} boxes={layers.boxes} tiles={layers.none} heat={layers.none} region={() => box} drawing onRegion={onBox} />
    </div>
  );
}
