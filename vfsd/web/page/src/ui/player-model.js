// @ts-check
// The state of a player: which frame is shown, exactly.
import { computed, signal } from "@preact/signals";
import { still } from "../lib/paths.js";

/** Milliseconds that a frame has to rest before its exact still is asked for. */
const REST = 140;
/** Seconds from one picture to the next while playing backwards. */
const BACK = 0.125;

/**
 * Plays a video by the numbers of its frames.
 *
 * A seek goes to the middle of the frame's span, so that rounding inside of the browser cannot show a neighbour.  The
 * browser states the time of the frame that it shows (`mediaTime`), and the frame table has its number.  A frame that
 * rests is replaced by its still, which is exact whatever the browser's decoder does.  Where the browser cannot
 * play the video, stills are all there is.
 */
export class PlayerModel {
  /** @param {string} name @param {import("../lib/frames.js").FrameTable} table @param {string} source */
  constructor(name, table, source) {
    this.name = name;
    this.table = table;
    this.source = source;
    this.frame = signal(0);
    this.playing = signal(false);
    this.backwards = signal(false);
    this.rate = signal(1);
    this.muted = signal(true);
    this.stillsOnly = signal(false);
    /** The address of the still that covers the video. */
    this.still = signal(/** @type {string | null} */ (null));
    /** Whether the picture is known to be that of `frame`. */
    this.exact = signal(false);
    this.time = computed(() => table.start(this.frame.value));
    /** @type {HTMLVideoElement | null} */
    this.video = null;
    /** Seconds that the browser's clock is ahead of the frame table: sound may begin before the first frame. */
    this.offset = 0;
    this.calibrated = false;
    this.queued = false;
    this.timer = 0;
    this.wait = 0;
  }

  /** @param {HTMLVideoElement} video @returns {() => void} lets go of it */
  attach(video) {
    this.video = video;
    const abort = new AbortController();
    const options = { signal: abort.signal };
    video.addEventListener("error", () => this.#useStills(), options);
    video.addEventListener("seeked", () => this.#seeked(), options);
    video.addEventListener("ended", () => this.pause(), options);
    // The first picture that arrives is that of frame 0: nothing was sought yet.
    this.#watch(video);
    video.muted = this.muted.value;
    video.src = this.source;
    this.#rest();
    return () => {
      abort.abort();
      this.pause();
      clearTimeout(this.wait);
      this.video = null;
      video.removeAttribute("src");
      video.load();
    };
  }

  /** @param {HTMLVideoElement} video */
  #watch(video) {
    if (!("requestVideoFrameCallback" in video)) {
      this.calibrated = true;
      return;
    }
    video.requestVideoFrameCallback((_, { mediaTime }) => {
      if (this.video !== video) return;
      if (!this.calibrated) this.#calibrate(mediaTime);
      else this.#shown(this.table.nearest(mediaTime - this.offset));
      this.#watch(video);
    });
  }

  /** @param {number} mediaTime */
  #calibrate(mediaTime) {
    this.offset = mediaTime - this.table.start(0);
    this.calibrated = true;
    if (this.frame.value === 0) this.#shown(0);
    else this.#seekVideo();
  }

  /** @param {number} frame that the browser shows now */
  #shown(frame) {
    if (this.playing.value && !this.backwards.value) {
      this.frame.value = frame;
      this.still.value = null;
      this.exact.value = true;
    } else if (frame === this.frame.value) {
      this.exact.value = true;
    }
  }

  #seeked() {
    if (this.queued) {
      this.queued = false;
      this.#seekVideo();
    }
  }

  #seekVideo() {
    const { video } = this;
    if (!video || this.stillsOnly.value || !this.calibrated) return;
    if (video.seeking) {
      this.queued = true;
      return;
    }
    video.currentTime = this.table.middle(this.frame.value) + this.offset;
  }

  #useStills() {
    const playing = this.playing.value;
    this.pause();
    this.stillsOnly.value = true;
    this.calibrated = true;
    this.#rest();
    if (playing) this.play();
  }

  /** Shows a frame, and stops there.
   * @param {number} frame */
  seek(frame) {
    if (this.playing.value) this.#stop();
    this.#to(this.table.clamp(frame));
  }

  /** @param {number} seconds */
  seekTime(seconds) {
    const frame = this.table.at(seconds);
    if (this.playing.value && !this.stillsOnly.value && this.video) {
      this.frame.value = frame;
      this.#seekVideo();
    } else {
      this.seek(frame);
    }
  }

  /** @param {number} by frames */
  step(by) {
    this.seek(this.frame.value + by);
  }

  /** @param {number} frame */
  #to(frame) {
    if (frame !== this.frame.value) this.exact.value = false;
    this.frame.value = frame;
    this.still.value = null;
    this.#seekVideo();
    this.#rest();
  }

  /** Asks for the still of the present frame once it has rested. */
  #rest() {
    clearTimeout(this.wait);
    this.wait = setTimeout(() => {
      if (this.playing.value) return;
      const frame = this.frame.value;
      const address = still(this.name, frame);
      const picture = new Image();
      picture.onload = () => {
        if (this.frame.value !== frame || this.playing.value) return;
        this.still.value = address;
        this.exact.value = true;
      };
      picture.src = address;
    }, this.stillsOnly.value ? 0 : REST);
  }

  toggle() {
    if (this.playing.value) this.pause();
    else this.play();
  }

  play(rate = 1) {
    this.#stop();
    this.rate.value = rate;
    if (this.frame.value >= this.table.length - 1) this.#to(0);
    clearTimeout(this.wait);
    this.playing.value = true;
    if (this.stillsOnly.value) {
      void this.#playStills();
      return;
    }
    const { video } = this;
    if (!video) return;
    video.playbackRate = rate;
    video.play().catch((error) => {
      if (error.name !== "AbortError") this.pause();
    });
  }

  /** Twice as fast as now, at most eightfold. */
  faster() {
    this.play(this.playing.value && !this.backwards.value ? Math.min(this.rate.value * 2, 8) : 1);
  }

  /** Plays backwards, twice as fast each time. */
  reverse() {
    const rate = this.backwards.value ? Math.min(this.rate.value * 2, 8) : 1;
    this.#stop();
    this.playing.value = true;
    this.backwards.value = true;
    this.rate.value = rate;
    this.timer = setInterval(() => {
      const at = this.time.value - BACK * rate;
      if (at <= 0) this.pause();
      this.#to(this.table.at(Math.max(at, 0)));
    }, BACK * 1000);
  }

  pause() {
    if (!this.playing.value) return;
    this.#stop();
    // The clock of the browser rests anywhere in the frame, or in the next one.
    this.#to(this.frame.value);
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.playing.value = false;
    this.backwards.value = false;
    this.video?.pause();
  }

  /** As many stills as arrive in time; the pace is that of the video. */
  async #playStills() {
    const begin = performance.now();
    const from = this.time.value;
    const { rate } = this;
    while (this.playing.value && this.video) {
      const at = from + ((performance.now() - begin) / 1000) * rate.value;
      const frame = this.table.at(at);
      const address = still(this.name, frame, { w: 960 });
      const picture = new Image();
      picture.src = address;
      await picture.decode().catch(() => undefined);
      if (!this.playing.value) return;
      this.frame.value = frame;
      this.still.value = address;
      this.exact.value = true;
      if (at >= this.table.duration) this.pause();
      await new Promise((resolve) => setTimeout(resolve, 15));
    }
  }

  /** @param {boolean} muted */
  mute(muted) {
    this.muted.value = muted;
    if (this.video) this.video.muted = muted;
  }
}
