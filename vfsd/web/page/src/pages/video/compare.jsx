// @ts-check
// A region of one frame from the original, and as a read gives it.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../../api.js";
import { trimmed } from "../../lib/format.js";
import { psnr, regionText } from "../../lib/geometry.js";
import { view } from "../../lib/paths.js";
import { Failure, Spinner } from "../../ui/basics.jsx";

/** @param {{name: string, frame: number, region: import("../../lib/geometry.js").Box}} props */
export function Compare({ name, frame, region }) {
  // Bare pixels, so that no encoding of pictures comes between.
  const request = `frames=${frame}-${frame + 1},roi=${regionText(region)}`;
  const { pictures, quality, error } = usePair(
    view(name, `${request},psnr=inf.rgb`),
    view(name, `${request}.rgb`),
    region.x2 - region.x1,
    region.y2 - region.y1,
  );
  return (
    <div class="compare" data-test="compare">
      {error ? <Failure error={error} /> : null}
      {!pictures && !error ? <div class="waiting"><Spinner /></div> : null}
      {pictures ? ["Original", "As stored"].map((title, index) => (
        <figure key={title}>
          <Picture data={pictures[index]} label={`${title}, frame ${frame}`} />
          <figcaption>
            {title}
            {index === 1 && quality !== null ? <strong data-test="psnr">{quality === Infinity ? "identical" : `${trimmed(quality, 2)} dB`}</strong> : null}
          </figcaption>
        </figure>
      )) : null}
    </div>
  );
}

/** @param {{data: ImageData, label: string}} props */
function Picture({ data, label }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => canvas.current?.getContext("2d")?.putImageData(data, 0, 0), [data]);
  return <canvas ref={canvas} width={data.width} height={data.height} role="img" aria-label={label} />;
}

/** @param {string} left @param {string} right @param {number} width @param {number} height */
function usePair(left, right, width, height) {
  const [state, setState] = useState({ pictures: /** @type {ImageData[] | null} */ (null), quality: /** @type {number | null} */ (null), error: /** @type {any} */ (null) });
  useEffect(() => {
    const abort = new AbortController();
    // A frame that rests is compared, not each one that is stepped over.
    const wait = setTimeout(async () => {
      try {
        const [a, b] = await Promise.all([left, right].map((address) => pixelsOf(address, width, height, abort.signal)));
        setState({ pictures: [a, b], quality: psnr(a.data, b.data), error: null });
      } catch (error) {
        if (!abort.signal.aborted) setState({ pictures: null, quality: null, error });
      }
    }, 150);
    return () => {
      clearTimeout(wait);
      abort.abort();
    };
  }, [left, right]);
  return state;
}

/** @param {string} address @param {number} width @param {number} height @param {AbortSignal} abort */
async function pixelsOf(address, width, height, abort) {
  const answer = await fetch(address, { credentials: "same-origin", signal: abort });
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (bytes.length !== width * height * 3) throw new ApiError(0, { message: "The pixels of this frame have another size than expected." });
  const data = new ImageData(width, height);
  for (let from = 0, to = 0; from < bytes.length; from += 3, to += 4) {
    data.data[to] = bytes[from];
    data.data[to + 1] = bytes[from + 1];
    data.data[to + 2] = bytes[from + 2];
    data.data[to + 3] = 255;
  }
  return data;
}
