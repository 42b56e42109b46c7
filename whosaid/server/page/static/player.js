/* Plays the recording from the browser's memory, and reports the position. */

import { element } from "./dom.js";
import { clock } from "./format.js";

const SPEEDS = [0.75, 1, 1.25, 1.5, 2];
const UNPLAYABLE = "This browser cannot play the recording. The transcript is not affected.";

export class Player {
  #audio = new Audio();
  #seconds = 0;
  #toggle = element("button", { type: "button", className: "round" });
  #place = element("input", {
    type: "range",
    min: 0,
    value: 0,
    "aria-label": "Place in the recording",
  });
  #time = element("span", { className: "time" });
  #speed = element(
    "select",
    { "aria-label": "Speed" },
    ...SPEEDS.map((speed) =>
      element("option", { value: speed, textContent: `${speed}×`, selected: speed === 1 }),
    ),
  );
  #unplayable = element("p", { className: "quiet", role: "status" });

  /** `onTime` gets the second that is played, continuously, and after every jump. */
  constructor(place, onTime) {
    this.place = place;
    this.onTime = onTime;
    place.append(this.#toggle, this.#time, this.#place, this.#speed, this.#unplayable);
    this.#toggle.onclick = () => (this.playing ? this.#audio.pause() : this.#start());
    this.#place.oninput = () => (this.#audio.currentTime = Number(this.#place.value));
    this.#speed.onchange = () => (this.#audio.playbackRate = Number(this.#speed.value));
    this.#audio.ondurationchange = () => this.#measure(this.#audio.duration);
    this.#audio.onseeked = () => this.#show();
    this.#audio.onplay = () => this.#follow();
    this.#audio.onpause = () => this.#show();
    this.#audio.onerror = () => this.#refuse();
  }

  get playing() {
    return !this.#audio.paused;
  }

  /** The recording's address in the browser's memory; "" if there is none. */
  get source() {
    return this.#audio.src;
  }

  /** Make ready to play a file. */
  load(file) {
    this.unload();
    this.#audio.src = URL.createObjectURL(file);
    this.#audio.playbackRate = this.#audio.defaultPlaybackRate = Number(this.#speed.value);
    this.place.hidden = false;
  }

  /** Forget the recording. */
  unload() {
    this.#audio.pause();
    if (this.source) URL.revokeObjectURL(this.source);
    this.#audio.removeAttribute("src");
    this.#unplayable.textContent = "";
    for (const each of [this.#toggle, this.#place, this.#time, this.#speed]) each.hidden = false;
    this.#seconds = 0;
    this.#show();
    this.place.hidden = true;
  }

  /** The recording's length as the server knows it: of what was just recorded, browsers do not. */
  setLength(seconds) {
    this.#seconds = 0;
    this.#measure(seconds);
  }

  playFrom(seconds) {
    if (!this.source) return;
    this.#audio.currentTime = seconds;
    this.#start();
  }

  #measure(seconds) {
    if (this.#seconds || !Number.isFinite(seconds)) return;
    this.#seconds = seconds;
    this.#place.max = String(seconds);
    this.#place.step = seconds < 60 ? "0.1" : "1";
    this.#show();
  }

  #start() {
    // If it cannot be played, `onerror` is called.
    this.#audio.play().catch(() => {});
  }

  #refuse() {
    if (!this.#audio.hasAttribute("src")) return;
    for (const each of [this.#toggle, this.#place, this.#time, this.#speed]) each.hidden = true;
    this.#unplayable.textContent = UNPLAYABLE;
  }

  #follow() {
    this.#show();
    if (this.playing) requestAnimationFrame(() => this.#follow());
  }

  #show() {
    const now = this.#audio.currentTime;
    const text = `${clock(now)} / ${clock(this.#seconds)}`;
    this.#toggle.classList.toggle("playing", this.playing);
    this.#toggle.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    this.#time.textContent = text;
    this.#place.value = String(now);
    this.#place.setAttribute("aria-valuetext", text.replace("/", "of"));
    this.onTime(now);
  }
}
