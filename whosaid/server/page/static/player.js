/* Plays the recording from the browser's memory, and reports the position. */

import { html } from "./dom.js";
import { clock } from "./format.js";

const SPEEDS = [0.75, 1, 1.25, 1.5, 2];
export const STEP_S = 3; // back or on by a key
const UNPLAYABLE = "This browser cannot play the recording. The transcript is not affected.";

export class Player {
  #audio = new Audio();
  #others = []; // the audio of other speakers' files, which follow, and its start in seconds
  #seconds = 0;
  #toggle = html`<button class="round" onclick=${() => this.toggle()} />`;
  #back = html`<button class="plain" aria-label="Back ${STEP_S} seconds" onclick=${() => this.skip(-STEP_S)}>−${STEP_S} s</button>`;
  #time = html`<span class="time" />`;
  #place = html`<input type="range" min="0" value="0" aria-label="Place in the recording" />`;
  #speed = html`
    <select aria-label="Speed">
      ${SPEEDS.map((speed) => html`<option value=${speed} selected=${speed === 1}>${speed}×</option>`)}
    </select>
  `;
  #controls = [this.#toggle, this.#back, this.#time, this.#place, this.#speed];
  #unplayable = html`<p class="quiet" role="status" />`;

  /** `onTime` gets the second that is played, continuously, and after every jump. */
  constructor(place, onTime) {
    this.place = place;
    this.onTime = onTime;
    place.append(...this.#controls, this.#unplayable);
    this.#place.oninput = () => (this.#audio.currentTime = Number(this.#place.value));
    this.#speed.onchange = () => (this.#audio.playbackRate = Number(this.#speed.value));
    this.#audio.ondurationchange = () => this.#measure(this.#audio.duration);
    this.#audio.onseeked = this.#audio.onpause = () => this.#show();
    this.#audio.onplay = () => this.#follow();
    for (const type of ["seeking", "playing", "pause", "waiting", "ratechange"])
      this.#audio.addEventListener(type, () =>
        this.#lead(this.#playing && !["seeking", "waiting"].includes(type)),
      );
    this.#audio.onerror = () => this.#audio.hasAttribute("src") && this.#allow(false);
  }

  get #playing() {
    return !this.#audio.paused;
  }

  /** The recording's address in the browser's memory; "" if there is none. */
  get source() {
    return this.#audio.src;
  }

  /** Make ready to play files together, which begin at these seconds: one of them at once. */
  load(files, starts = files.map(() => 0)) {
    this.unload();
    const all = files.map((file, i) => ({ source: URL.createObjectURL(file), start: starts[i] }));
    const first = all.findIndex(({ start }) => start === 0);
    this.#audio.src = all[first].source;
    all.splice(first, 1);
    this.#others = all.map(({ source, start }) => ({ audio: new Audio(source), start }));
    this.#audio.playbackRate = this.#audio.defaultPlaybackRate = Number(this.#speed.value);
    this.place.hidden = false;
  }

  unload() {
    this.#audio.pause();
    for (const { src } of [this.#audio, ...this.#others.map(({ audio }) => audio)])
      if (src) URL.revokeObjectURL(src);
    this.#others = [];
    this.#audio.removeAttribute("src");
    this.#allow(true);
    this.#seconds = 0;
    this.#show();
    this.place.hidden = true;
  }

  /** The recording's length as the server knows it: of what was just recorded, browsers do not. */
  setLength(seconds) {
    this.#seconds = 0;
    this.#measure(seconds);
  }

  toggle() {
    if (this.#playing) this.#audio.pause();
    else this.#audio.play().catch(() => {}); // `onerror` is called
  }

  skip(seconds) {
    this.#audio.currentTime = Math.min(Math.max(this.#audio.currentTime + seconds, 0), this.#seconds);
  }

  /** Take the next speed (1) or the one before (-1). */
  changeSpeed(step) {
    const place = SPEEDS.indexOf(Number(this.#speed.value)) + step;
    if (!(place in SPEEDS)) return;
    this.#speed.value = String(SPEEDS[place]);
    this.#audio.playbackRate = SPEEDS[place];
  }

  playFrom(seconds) {
    if (!this.source) return;
    this.#audio.currentTime = seconds;
    if (!this.#playing) this.toggle();
  }

  #measure(seconds) {
    if (this.#seconds || !Number.isFinite(seconds)) return;
    this.#seconds = seconds;
    this.#place.max = String(seconds);
    this.#place.step = seconds < 60 ? "0.1" : "1";
    this.#show();
  }

  #allow(isPlayable) {
    for (const each of this.#controls) each.hidden = !isPlayable;
    this.#unplayable.textContent = isPlayable ? "" : UNPLAYABLE;
  }

  /** Let the others do as the first. */
  #lead(plays) {
    for (const { audio, start } of this.#others) {
      const place = this.#audio.currentTime - start;
      audio.currentTime = Math.max(0, place);
      audio.playbackRate = this.#audio.playbackRate;
      if (plays && place >= 0) audio.play().catch(() => {});
      else audio.pause();
    }
  }

  #follow() {
    this.#show();
    const now = this.#audio.currentTime;
    const isDue = ({ audio, start }) => audio.paused && !audio.ended && start <= now;
    if (this.#playing && this.#others.some(isDue)) this.#lead(true);
    if (this.#playing) requestAnimationFrame(() => this.#follow());
  }

  #show() {
    const now = this.#audio.currentTime;
    const text = `${clock(now)} / ${clock(this.#seconds)}`;
    this.#toggle.classList.toggle("playing", this.#playing);
    this.#toggle.ariaLabel = this.#playing ? "Pause" : "Play";
    this.#time.textContent = text;
    this.#place.value = String(now);
    this.#place.ariaValueText = text.replace("/", "of");
    this.onTime(now);
  }
}
