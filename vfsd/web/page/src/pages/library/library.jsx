// @ts-check
// The library: directories, filters, and the videos as a grid or a table.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, useAnswer } from "../../api.js";
import { counted } from "../../lib/format.js";
import { setParams } from "../../router.js";
import { begin, may } from "../../session.js";
import { Button, Chip, Empty, Failure, Segmented, Spinner } from "../../ui/basics.jsx";
import { VirtualGrid } from "../../ui/grid.jsx";
import { Icon } from "../../ui/icons.jsx";
import { useKeys } from "../../ui/keyboard.jsx";
import { SelectionBar } from "./actions.jsx";
import { Directories, Trail } from "./directories.jsx";
import { ACTIVE, FilterPanel } from "./filters.jsx";
import { VideoCard, VideoRow } from "./items.jsx";
import { UploadButton, UploadTarget } from "./upload.jsx";

/** @typedef {{name: string, kind: string, size: number, frames: number | null, width: number | null, height: number | null,
 *   seconds: number | null, codec: string | null, modified: string, tags?: string[], labels?: string[],
 *   damaged_frames?: number, held?: boolean, verified?: boolean, reason?: string | null,
 *   captured?: {time: string} | null}} Item */

const PAGE = 200;

/** @param {import("../../routes.js").PageProps} props */
export function LibraryPage({ params }) {
  const [filtering, setFiltering] = useState(false);
  const [places, setPlaces] = useState(false);
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const filters = useMemo(() => Object.fromEntries(Object.entries(params).filter(([key]) => ACTIVE.has(key))), [params]);
  const query = useMemo(() => ({ ...filters, dir: params.dir, deep: params.dir ? 1 : null, sort: params.sort, limit: PAGE }), [filters, params.dir, params.sort]);
  const videos = useVideos(query);
  const dir = params.dir ?? "";
  const dirs = useAnswer("/api/1/dirs", { under: dir });
  const table = params.view === "table";
  const active = Object.keys(filters).length;

  useEffect(() => setChosen(new Set()), [query]);
  useKeys("Library", {
    g: ["grid or table", () => setParams({ view: table ? null : "table" })],
    a: ["select all", () => setChosen(new Set(videos.items.map((one) => one.name)))],
    Escape: ["", () => setChosen(new Set())],
  });

  /** @param {string} name */
  const choose = (name) => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    setChosen(next);
  };
  const reload = () => {
    videos.reload();
    dirs.reload();
    void begin(); // the counts of the tree
    setChosen(new Set());
  };

  const heading = (
    <div class="library-heading">
      <Trail dir={dir} />
      <span class="muted" data-test="count">{videos.items.length > 0 ? `${counted(videos.items.length, "video")}${videos.more ? " and more" : ""}` : ""}</span>
    </div>
  );
  const folders = active > 0 ? [] : (dirs.data?.items ?? []);
  return (
    <UploadTarget dir={dir} onDone={reload}>
      <div class="library" data-test="library">
        <aside class={places ? "places open" : "places"} aria-label="Directories">
          <Directories dir={dir} onGo={() => setPlaces(false)} />
        </aside>
        <section class="library-main">
          <div class="toolbar" role="search">
            <span class="narrow-only"><Button icon="folder" label="Directories" expanded={places} onClick={() => setPlaces(!places)} test="places" /></span>
            <div class="with-icon">
              <Icon name="search" size={16} />
              <input
                type="search"
                placeholder="Name or pattern, as in cam1/**"
                aria-label="Name or pattern"
                value={typed(params.glob ?? "")}
                data-search-field
                onChange={(event) => setParams({ glob: pattern(event.currentTarget.value) })}
                data-test="filter-name"
              />
            </div>
            <Button icon="menu" pressed={filtering} onClick={() => setFiltering(!filtering)} test="filters">
              {active > 0 ? `Filters · ${active}` : "Filters"}
            </Button>
            <Segmented
              label="View"
              value={table ? "table" : "grid"}
              options={[{ value: "grid", label: "Grid", icon: "library" }, { value: "table", label: "Table", icon: "table" }]}
              onChange={(value) => setParams({ view: value === "table" ? "table" : null })}
              test="view"
            />
            <UploadButton dir={dir} onDone={reload} />
          </div>
          {filtering ? <FilterPanel params={params} onClose={() => setFiltering(false)} /> : null}
          {active > 0 ? (
            <div class="chips active-filters" data-test="active-filters">
              {Object.entries(filters).map(([key, value]) => (
                <Chip key={key} tone="accent" label={key === "label" ? value : undefined} onRemove={() => setParams({ [key]: null })}>
                  {`${ACTIVE.get(key)} ${key === "glob" ? typed(value) : value}`}
                </Chip>
              ))}
              <button type="button" class="link" onClick={() => setParams(Object.fromEntries(Object.keys(filters).map((key) => [key, null])))}>clear</button>
            </div>
          ) : null}
          <div class="library-list">
            {videos.error ? (
              <div class="padded"><Failure error={videos.error} onRetry={videos.reload} /></div>
            ) : videos.loading && videos.items.length === 0 ? (
              <div class="waiting"><Spinner /></div>
            ) : videos.items.length === 0 ? (
              <Nothing filtered={active > 0 || Boolean(dir)} />
            ) : table ? (
              <VirtualGrid
                key={`table ${dir}`}
                label="Videos"
                items={videos.items}
                keyOf={(item) => item.name}
                rowHeight={45}
                header={<>{heading}<FolderList folders={folders} /><TableHead /></>}
                onEnd={videos.next}
                render={(item) => <VideoRow item={item} dir={dir} chosen={chosen.has(item.name)} onChoose={choose} />}
                test="videos"
              />
            ) : (
              <VirtualGrid
                key={`grid ${dir}`}
                label="Videos"
                items={videos.items}
                keyOf={(item) => item.name}
                columnWidth={innerWidth < 700 ? 150 : 216}
                rowHeight={(width) => Math.round((width * 9) / 16) + 92}
                gap={16}
                header={<>{heading}<FolderList folders={folders} /></>}
                onEnd={videos.next}
                render={(item) => <VideoCard item={item} dir={dir} chosen={chosen.has(item.name)} selecting={chosen.size > 0} onChoose={choose} />}
                test="videos"
              />
            )}
          </div>
          {chosen.size > 0 ? <SelectionBar names={[...chosen]} onClear={() => setChosen(new Set())} onDone={reload} /> : null}
        </section>
      </div>
    </UploadTarget>
  );
}

/** A word finds names that contain it; what has a `*` or `?` is a pattern of the whole name.
 * @param {string} text */
function pattern(text) {
  const word = text.trim();
  if (word === "") return null;
  return /[*?]/.test(word) ? word : `**${word}**`;
}

/** What was typed for a pattern that `pattern` made.
 * @param {string} glob */
function typed(glob) {
  return /^\*\*([^*?]+)\*\*$/.exec(glob)?.[1] ?? glob;
}

/** @param {{folders: {path: string, name: string, videos: number}[]}} props */
function FolderList({ folders }) {
  if (folders.length === 0) return null;
  return (
    <div class="folders">
      {folders.map((one) => (
        <button type="button" class="folder" key={one.path} onClick={() => setParams({ dir: one.path })} title={one.path} data-test="folder">
          <Icon name="folder" />
          <span class="cut">{one.name}</span>
          <span class="muted">{one.videos}</span>
        </button>
      ))}
    </div>
  );
}

function TableHead() {
  return (
    <div class="video-row table-head" aria-hidden="true">
      <span />
      <span>Name</span>
      <span class="col-length right">Length</span>
      <span class="col-frame">Picture</span>
      <span class="col-size right">Size</span>
      <span class="col-labels">Labels and tags</span>
    </div>
  );
}

/** @param {{filtered: boolean}} props */
function Nothing({ filtered }) {
  if (filtered) {
    return (
      <Empty icon="search" title="No video matches">
        <p>Change the filters, or go to another directory.</p>
        <Button onClick={() => { location.hash = "#/"; }} test="show-all">Show all videos</Button>
      </Empty>
    );
  }
  return (
    <Empty icon="library" title="No videos yet">
      <p>{may("upload") ? "Drop files here, or add them with" : "Add some with"} <code>vfsd ingest</code>.</p>
    </Empty>
  );
}

/** The videos of a query: the first page, then more on demand.
 * @param {Record<string, any>} query */
function useVideos(query) {
  const [state, setState] = useState({ items: /** @type {Item[]} */ ([]), after: /** @type {string | null} */ (null), error: /** @type {any} */ (null), loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    setState((old) => ({ ...old, error: null, loading: true }));
    get("/api/1/videos", query, abort.signal).then(
      (found) => setState({ items: found.items, after: found.next, error: null, loading: false }),
      (error) => !abort.signal.aborted && setState({ items: [], after: null, error, loading: false }),
    );
    return () => abort.abort();
  }, [query, turn]);
  const next = () => {
    if (state.after === null || state.loading) return;
    setState((old) => ({ ...old, loading: true }));
    get("/api/1/videos", { ...query, after: state.after }).then(
      (found) => setState((old) => ({ items: [...old.items, ...found.items], after: found.next, error: null, loading: false })),
      (error) => setState((old) => ({ ...old, error, loading: false })),
    );
  };
  return { ...state, more: state.after !== null, next, reload: () => setTurn((value) => value + 1) };
}
