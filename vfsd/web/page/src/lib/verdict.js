// @ts-check
// The verdict on two overlapping videos, in sentences.

/** @param {{verdict?: string, why?: string, fixed?: boolean, movement?: number | null, joined?: any}} pair
 * @returns {{headline: string, text: string}} */
export function verdictText(pair) {
  const why = pair.why ? `${pair.why[0].toUpperCase()}${pair.why.slice(1)}.`.replace(/\.\.$/, ".") : "";
  if (pair.joined) return { headline: "The common part of these two is stored once", text: "" };
  switch (pair.verdict) {
    case "same":
      return { headline: "These two are the same file", text: "Their bytes are stored once already." };
    case "copy":
      return { headline: "One shows exactly what the other shows", text: why };
    case "join":
      return { headline: pair.fixed === false ? "These two can be joined: same place, same moment, moving cameras" : "These two can be joined: same place, same moment", text: why };
    case "partly":
      return { headline: "These two agree at some moments only", text: why };
    default:
      return {
        headline: pair.movement !== null && pair.movement !== undefined && pair.movement < 0.3 ? "Same place, but another time" : "Same place, but the pictures differ too much to be joined",
        text: why,
      };
  }
}

/** @param {number | null | undefined} value dB */
export function psnrText(value) {
  if (value === null || value === undefined) return "unknown";
  return value > 99 ? "equal" : `${value.toFixed(1)} dB`;
}
