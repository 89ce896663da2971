// @ts-check
// The wall of cameras: the last picture of each, and its age.
import { useEffect, useState } from "preact/hooks";
import { useAnswer } from "../api.js";
import { listen } from "../events.js";
import { ago, counted, date } from "../lib/format.js";
import { escaped, still } from "../lib/paths.js";
import { Chip, Empty, Failure, Spinner } from "../ui/basics.jsx";

const LATE = 10 * 60 * 1000; // milliseconds after which a camera is late

/** @param {import("../routes.js").PageProps} _props */
export function CamerasPage(_props) {
  const { data, error, reload } = useAnswer("/api/1/cameras");
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 15000);
    const stop = listen("spans", () => reload());
    return () => {
      clearInterval(timer);
      stop();
    };
  }, []);
  if (error) return <div class="page"><Failure error={error} onRetry={reload} /></div>;
  if (!data) return <div class="waiting"><Spinner /></div>;
  if (data.items.length === 0) {
    return (
      <Empty icon="camera" title="No camera yet">
        <p>A directory whose videos have a time of recording is a camera here.</p>
        <p>Record one with <code>vfsd record</code>, or read the times from names with <code>vfsd captured --from name:…</code>.</p>
      </Empty>
    );
  }
  return (
    <div class="page">
      <header class="page-head">
        <h1>Cameras</h1>
        <p class="muted">{counted(data.items.length, "camera")}; the last picture of each.</p>
      </header>
      <ul class="wall" data-test="wall">
        {data.items.map((/** @type {any} */ one) => <Card key={one.name} camera={one} now={now} />)}
      </ul>
    </div>
  );
}

/** @param {{camera: any, now: number}} props */
function Card({ camera, now }) {
  const { name, latest, last, videos, gaps } = camera;
  const late = last === null || now - Date.parse(last) > LATE;
  return (
    <li class="wall-card" data-test="camera" data-camera={name}>
      <a class="card-link" href={`#/camera/${escaped(name)}`}>
        <div class="wall-picture">
          {latest ? <img src={still(latest.name, latest.frame, { w: 640 })} alt={`Last picture of ${name}`} loading="lazy" /> : null}
        </div>
        <div class="wall-facts">
          <h2 class="cut">{name}</h2>
          <span class="muted cut" title={last ? date(last) : undefined} data-test="age">{last ? ago(last, now) : "nothing recorded"}</span>
          <span class="spread" />
          {late ? <Chip tone="plain" title="Nothing was recorded in the last ten minutes">not recording</Chip> : <Chip tone="good">recording</Chip>}
        </div>
        <p class="muted wall-counts">{counted(videos, "video")}, {gaps === 0 ? "no gaps" : counted(gaps, "gap")}</p>
      </a>
    </li>
  );
}
