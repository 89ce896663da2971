// @ts-check
// A region of one frame from the original, and as a read gives it.
import { useEffect, useState } from "preact/hooks";
import { trimmed } from "../../lib/format.js";
import { psnr, regionText } from "../../lib/geometry.js";
import { view } from "../../lib/paths.js";
import { Failure, Spinner } from "../../ui/basics.jsx";

/** @param {{name: string, frame: number, region: import("../../lib/geometry.js").Box}} props */
export function Compare({ name, frame, region }) {
  const still = `frames/${String(frame).padStart(6, "0")}.png`;
  const box = regionText(region);
  const addresses = [view(name, still, { box, psnr: "inf" }), view(name, still, { box })];
  const { pictures, quality, error } = usePair(addresses[0], addresses[1]);
  return (
    <div class="compare" data-test="compare">
      {error ? <Failure error={error} /> : null}
      {!pictures && !error ? <div class="waiting"><Spinner /></div> : null}
      {pictures ? ["Original", "As stored"].map((title, index) => (
        <figure key={title}>
          <img src={pictures[index]} alt={`${title}, frame ${frame}, region ${box}`} />
          <figcaption>
            {title}
            {index === 1 && quality !== null ? <strong data-test="psnr">{quality === Infinity ? "identical" : `${trimmed(quality, 2)} dB`}</strong> : null}
          </figcaption>
        </figure>
      )) : null}
    </div>
  );
}

/** @param {string} left @param {string} right */
function usePair(left, right) {
  const [state, setState] = useState({ key: "", pictures: /** @type {string[] | null} */ (null), quality: /** @type {number | null} */ (null), error: /** @type {any} */ (null) });
  useEffect(() => {
    let current = true;
    const wait = setTimeout(async () => {
      try {
        const [a, b] = await Promise.all([left, right].map(pixelsOf));
        const same = a.width === b.width && a.height === b.height;
        if (current) setState({ key: left, pictures: [left, right], quality: same ? psnr(a.data, b.data) : null, error: null });
      } catch {
        if (current) setState({ key: left, pictures: null, quality: null, error: { message: "The pictures of this frame cannot be read." } });
      }
    }, 150);
    return () => {
      current = false;
      clearTimeout(wait);
    };
  }, [left, right]);
  return state;
}

/** @param {string} address */
async function pixelsOf(address) {
  const picture = new Image();
  picture.src = address;
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.naturalWidth, picture.naturalHeight);
  const pen = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  pen.drawImage(picture, 0, 0);
  return pen.getImageData(0, 0, canvas.width, canvas.height);
}
