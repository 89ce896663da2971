// @ts-check
// The tree of directories, opened as far as the present one.
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer } from "../../api.js";
import { count } from "../../lib/format.js";
import { setParams } from "../../router.js";
import { session } from "../../session.js";
import { Failure } from "../../ui/basics.jsx";
import { Icon } from "../../ui/icons.jsx";

/** @param {{dir: string, onGo: () => void}} props */
export function Directories({ dir, onGo }) {
  return (
    <div class="tree" data-test="tree">
      <button type="button" class="tree-row" aria-current={dir === "" ? "true" : undefined} onClick={() => { setParams({ dir: null }); onGo(); }}>
        <Icon name="library" size={16} />
        <span class="cut">All videos</span>
        <span class="muted">{count(session.value?.store.videos ?? 0)}</span>
      </button>
      <Branch under="" dir={dir} depth={0} onGo={onGo} />
    </div>
  );
}

/** @param {{under: string, dir: string, depth: number, onGo: () => void}} props */
function Branch({ under, dir, depth, onGo }) {
  const { data, error, reload } = useAnswer("/api/1/dirs", { under });
  const known = useRef(session.value);
  useEffect(() => {
    // A new session comes with changes of the store.
    if (known.current !== session.value) reload();
    known.current = session.value;
  }, [session.value]);
  if (error) return <Failure error={error} onRetry={reload} />;
  return (
    <ul>
      {(data?.items ?? []).map((/** @type {{path: string, name: string, videos: number, directories: number}} */ one) => (
        <Directory key={one.path} one={one} dir={dir} depth={depth} onGo={onGo} />
      ))}
    </ul>
  );
}

/** @param {{one: {path: string, name: string, videos: number, directories: number}, dir: string, depth: number, onGo: () => void}} props */
function Directory({ one, dir, depth, onGo }) {
  const inside = dir === one.path || dir.startsWith(`${one.path}/`);
  const [opened, setOpened] = useState(/** @type {boolean | null} */ (null));
  const open = opened ?? inside;
  const { name } = one;
  return (
    <li>
      <div class="tree-line" style={{ paddingLeft: `${depth * 14}px` }}>
        {one.directories > 0 ? (
          <button type="button" class="tree-open" aria-label={`${open ? "Close" : "Open"} ${name}`} aria-expanded={open} onClick={() => setOpened(!open)}>
            <Icon name={open ? "down" : "right"} size={12} />
          </button>
        ) : <span class="tree-open" />}
        <button type="button" class="tree-row" aria-current={dir === one.path ? "true" : undefined} title={one.path} onClick={() => { setParams({ dir: one.path }); onGo(); }} data-test="directory">
          <span class="cut">{name}</span>
          <span class="muted">{count(one.videos)}</span>
        </button>
      </div>
      {open && one.directories > 0 ? <Branch under={one.path} dir={dir} depth={depth + 1} onGo={onGo} /> : null}
    </li>
  );
}

/** The present directory, each part a button.
 * @param {{dir: string}} props */
export function Trail({ dir }) {
  const parts = dir ? dir.split("/") : [];
  return (
    <h1 class="trail">
      {parts.length === 0 ? "All videos" : <button type="button" class="link" onClick={() => setParams({ dir: null })}>All</button>}
      {parts.map((part, index) => {
        const path = parts.slice(0, index + 1).join("/");
        return (
          <span key={path}>
            <span class="muted"> / </span>
            {index === parts.length - 1 ? part : <button type="button" class="link" onClick={() => setParams({ dir: path })}>{part}</button>}
          </span>
        );
      })}
    </h1>
  );
}
