// @ts-check
// Plays the recordings of a camera on the clock of the wall, across files and gaps.
import { computed, signal } from "@preact/signals";
import { get } from "../api.js";
import { FrameTable } from "../lib/frames.js";
import { still, videoApi } from "../lib/paths.js";
import { Partings } from "../lib/partings.js";

/** @typedef {import("../lib/partings.js").Part} Part */

const REST = 120; // milliseconds that a frame rests before its exact still is asked for
const TOLERANCE = 0.25; // seconds that a playing video may be away from its time

/** One camera on a span of time.  Instants are milliseconds of Unix time. */
export class DayPlayer {
  /** @param {string} playlist address @param {Part[]} parts in order of time */
  constructor(playlist, parts) {
    this.playlist = playlist;
    this.parts = new Partings(parts);
    this.at = signal(parts[0]?.start ?? 0); // the instant that is shown
    this.playing = signal(false);
    this.rate = signal(1);
    this.muted = signal(true);
    this.error = signal(/** @type {string | null} */ (null));
    this.still = signal(/** @type {string | null} */ (null)); // exact picture over the video
    this.exact = signal(false);
    this.part = computed(() => this.parts.at(this.at.value));
    this.frame = signal(/** @type {{name: string, index: number} | null} */ (null));
    /** @type {Map<string, Promise<FrameTable>>} */
    this.tables = new Map();
    /** @type {HTMLVideoElement | null} */
    this.video = null;
    /** @type {any} */
    this.hls = null;
    this.wait = 0;
    this.turn = 0;
  }

  /** Begins to use an element; returns what ends it.
   * @param {HTMLVideoElement} video */
  attach(video) {
    this.video = video;
    video.muted = this.muted.value;
    const abort = new AbortController();
    const options = { signal: abort.signal };
    video.addEventListener("timeupdate", () => this.#follow(), options);
    video.addEventListener("ended", () => this.pause(), options);
    void this.#load(video, abort.signal);
    return () => {
      abort.abort();
      clearTimeout(this.wait);
      this.hls?.destroy();
      this.hls = null;
      this.video = null;
    };
  }

  /** @param {HTMLVideoElement} video @param {AbortSignal} abort */
  async #load(video, abort) {
    // @ts-expect-error a file of its own, next to the built page
    const { default: Hls } = await import("./hls.js");
    if (abort.aborted) return;
    if (!Hls.isSupported()) {
      this.error.value = "This browser has no Media Source Extensions, so it shows stills only.";
      this.#rest();
      return;
    }
    const hls = new Hls({ enableWorker: false, maxBufferLength: 20, backBufferLength: 30, startPosition: 0, autoStartLoad: false });
    this.hls = hls;
    hls.on(Hls.Events.ERROR, (/** @type {any} */ _, /** @type {any} */ data) => {
      if (!data.fatal) return;
      if (data.type === Hls.ErrorTypes.MEDIA_ERROR && this.error.value === null) hls.recoverMediaError();
      else this.error.value = data.response?.code ? `The server answered with status ${data.response.code}.` : `The footage cannot be played (${data.details}).`;
    });
    hls.on(Hls.Events.FRAG_BUFFERED, () => {
      // Only now are the times of the fragment known exactly.
      const wanted = this.playing.value || !this.part.value ? null : this.#mediaTime(this.at.value);
      if (wanted !== null && Math.abs(video.currentTime - wanted) > 0.001) video.currentTime = wanted;
    });
    hls.on(Hls.Events.LEVEL_LOADED, () => {
      hls.startLoad(Math.max(this.#mediaTime(this.at.value) ?? 0, 0));
      this.#seekVideo();
      this.#rest();
    });
    hls.loadSource(this.playlist);
    hls.attachMedia(video);
  }

  /** Fragments of the playlist, with the instant of each. */
  get #fragments() {
    return this.hls?.levels?.[0]?.details?.fragments ?? [];
  }

  /** Seconds of the element at which a fragment begins.
   *
   * Files of video with B-frames hide the delay of their first picture by an edit list.  hls.js
   * counts the delay in its times, and the browser does not.
   * @param {number} index */
  #begin(index) {
    const fragments = this.#fragments;
    const found = fragments[index];
    let delay = 0;
    for (const step of [-1, 1]) {
      for (let at = index; fragments[at]?.cc === found.cc; at += step) {
        const { startPTS, startDTS } = fragments[at];
        if (startPTS !== undefined && startDTS !== undefined) delay = Math.max(delay, startPTS - startDTS);
      }
    }
    return (found.startPTS ?? found.start) - delay;
  }

  /** @param {number} instant @returns {number | null} seconds of the element */
  #mediaTime(instant) {
    const index = this.#last((fragment) => fragment.programDateTime <= instant + 0.01);
    const found = this.#fragments[index];
    if (!found) return null;
    return this.#begin(index) + Math.min((instant - found.programDateTime) / 1000, found.duration - 0.001);
  }

  /** @param {number} seconds of the element @returns {number | null} instant */
  #instant(seconds) {
    let index = this.#last((fragment) => fragment.start <= seconds + 1);
    while (index > 0 && this.#begin(index) > seconds + 1e-4) index--;
    const found = this.#fragments[index];
    return found ? found.programDateTime + (seconds - this.#begin(index)) * 1000 : null;
  }

  /** Index of the last fragment for which `holds` is true, or 0; it is true for all before that one.
   * @param {(fragment: any) => boolean} holds */
  #last(holds) {
    const fragments = this.#fragments;
    let low = 0;
    let high = fragments.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (holds(fragments[middle])) low = middle + 1;
      else high = middle;
    }
    return Math.max(low - 1, 0);
  }

  #follow() {
    const { video } = this;
    if (!video || !this.playing.value) return;
    const instant = this.#instant(video.currentTime);
    if (instant === null) return;
    this.at.value = instant;
    this.still.value = null;
    this.exact.value = false;
    void this.#name(++this.turn, false);
  }

  #seekVideo() {
    const { video } = this;
    if (!video || !this.part.value) return;
    const wanted = this.#mediaTime(this.at.value);
    if (wanted !== null) video.currentTime = wanted;
  }

  /** Shows an instant, and goes on playing if it plays.
   * @param {number} instant */
  seek(instant) {
    this.at.value = instant;
    this.still.value = null;
    this.exact.value = false;
    this.#seekVideo();
    this.#rest();
  }

  /** Keeps the time of another player.
   * @param {number} instant @param {boolean} playing @param {number} rate */
  keepUp(instant, playing, rate) {
    const covered = this.parts.at(instant) !== null;
    if (this.rate.value !== rate && this.video) this.video.playbackRate = rate;
    this.rate.value = rate;
    if (!playing || !covered) {
      if (this.playing.value) this.#stop();
      if (Math.abs(this.at.value - instant) > 0.5) this.seek(instant);
      return;
    }
    const away = Math.abs((this.#instant(this.video?.currentTime ?? 0) ?? 0) - instant) / 1000;
    if (away > TOLERANCE * Math.max(rate, 1)) this.seek(instant);
    else this.at.value = instant;
    if (!this.playing.value) this.#start();
  }

  /** @param {number} by frames */
  async step(by) {
    this.pause();
    const part = this.part.value;
    if (!part) return this.seek(this.parts.after(this.at.value)?.start ?? this.at.value);
    const turn = ++this.turn;
    const table = await this.#table(part.name);
    if (turn !== this.turn) return undefined;
    const wanted = table.at((this.at.value - part.origin) / 1000) + by;
    const next = wanted < 0 ? this.parts.before(part.start) : this.parts.after(part.end - 1);
    const last = table.at((part.end - part.origin) / 1000 - 1e-4);
    if (wanted >= 0 && wanted <= last) return this.seek(part.origin + table.middle(wanted) * 1000);
    if (!next) return undefined;
    const other = await this.#table(next.name);
    const edge = wanted < 0 ? other.at((next.end - next.origin) / 1000 - 1e-4) : other.at((next.start - next.origin) / 1000);
    return this.seek(next.origin + other.middle(edge) * 1000);
  }

  toggle() {
    if (this.playing.value) this.pause();
    else this.play();
  }

  play() {
    if (!this.part.value) {
      const next = this.parts.after(this.at.value);
      if (!next) return;
      this.seek(next.start);
    }
    this.#start();
  }

  #start() {
    const { video } = this;
    if (!video) return;
    clearTimeout(this.wait);
    this.playing.value = true;
    video.playbackRate = this.rate.value;
    video.play().catch((error) => {
      if (error.name !== "AbortError") this.pause();
    });
  }

  #stop() {
    this.playing.value = false;
    this.video?.pause();
  }

  pause() {
    if (!this.playing.value) return;
    this.#stop();
    const instant = this.#instant(this.video?.currentTime ?? 0);
    if (instant !== null) this.at.value = instant;
    this.#rest();
  }

  /** @param {number} rate */
  setRate(rate) {
    this.rate.value = rate;
    if (this.video) this.video.playbackRate = rate;
  }

  /** @param {boolean} muted */
  mute(muted) {
    this.muted.value = muted;
    if (this.video) this.video.muted = muted;
  }

  /** @param {string} name */
  #table(name) {
    const known = this.tables.get(name);
    if (known) return known;
    const asked = get(videoApi(name, "/frames")).then((answer) => new FrameTable(answer));
    asked.catch(() => this.tables.delete(name));
    this.tables.set(name, asked);
    return asked;
  }

  /** Asks for the exact still of the present frame once it has rested. */
  #rest() {
    clearTimeout(this.wait);
    const turn = ++this.turn;
    this.wait = window.setTimeout(() => void this.#name(turn, true), REST);
  }

  /** Learns the number of the frame that is shown now.
   * @param {number} turn @param {boolean} rests whether its still is wanted, too */
  async #name(turn, rests) {
    const part = this.part.value;
    if (!part) {
      this.frame.value = null;
      return;
    }
    try {
      const table = await this.#table(part.name);
      if (turn !== this.turn) return;
      const index = table.at((this.at.value - part.origin) / 1000);
      this.frame.value = { name: part.name, index };
      if (!rests) return;
      const address = still(part.name, index);
      const picture = new Image();
      picture.onload = () => {
        if (turn !== this.turn || this.playing.value) return;
        this.still.value = address;
        this.exact.value = true;
      };
      picture.src = address;
    } catch (error) {
      if (turn === this.turn && error instanceof Error) this.error.value = error.message;
    }
  }
}
