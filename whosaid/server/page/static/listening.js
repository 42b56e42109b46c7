/* Shows the microphone while it is on: state, level, time, and the delay of words. */

import { byId } from "./dom.js";
import { clock } from "./format.js";
import { PIECES } from "./microphone.js";

const FULL_SCALE = 32768;
const QUIETEST_DB = 60; // below full scale: the meter's left end
const SILENT_SECONDS = 3; // without one sample that is not zero
const WORDS = 30; // of which the delay is told
const LATE_SECONDS = 5; // of speech without any word

export class Listening {
  #timer = 0;
  #silent = 0; // pieces
  #detail = "";
  #delays = []; // seconds from the ends of words to their appearance

  /** `announce` announces each state to screen readers once. */
  constructor(announce) {
    this.announce = announce;
  }

  /** `seconds()` is the recording's length, `waiting()` the time since speech began or words came. */
  start(seconds, waiting) {
    byId("listening").hidden = false;
    byId("listening").classList.add("on");
    byId("stop").textContent = "Stop";
    this.#level(0);
    const tick = () => {
      byId("listened").textContent = clock(seconds());
      this.#tellDelay(Math.round(waiting()));
    };
    tick();
    this.#timer = setInterval(tick, 200);
  }

  end() {
    clearInterval(this.#timer);
    byId("listening").hidden = true;
  }

  say(state, detail = "") {
    this.announce(`${state}. ${detail}`.trim());
    this.#detail = detail;
    byId("listening-state").textContent = state;
    byId("listening-detail").textContent = detail;
  }

  /** The recording has ended; the last words are awaited. */
  finish(detail) {
    clearInterval(this.#timer);
    byId("listening").classList.remove("on");
    this.#level(0);
    this.say("Writing down the last words", detail);
    byId("stop").textContent = "Stop waiting";
  }

  hear(samples) {
    const peak = samples.reduce((most, each) => Math.max(most, Math.abs(each)), 0) / FULL_SCALE;
    this.#silent = peak ? 0 : this.#silent + 1;
    this.#level(peak && Math.max(0, 1 + (20 * Math.log10(peak)) / QUIETEST_DB));
    const isSilent = this.#silent >= SILENT_SECONDS * PIECES;
    const detail = isSilent ? "Nothing comes from the microphone: is it muted?" : this.#detail;
    if (byId("listening-detail").textContent !== detail)
      byId("listening-detail").textContent = detail;
  }

  appeared(now, words) {
    if (!words.length) return;
    this.#delays.push(...words.map(({ end }) => Math.max(0, now - end)));
    this.#tellDelay(0);
  }

  /** The median delay of all words in seconds; 0 without words. */
  get delay() {
    return median(this.#delays) ?? 0;
  }

  #tellDelay(waiting) {
    const delay = median(this.#delays.slice(-WORDS));
    const behind = delay === undefined ? "" : `${delay.toFixed(1)} s behind`;
    byId("delay").textContent =
      waiting >= LATE_SECONDS ? `the server is behind: ${waiting} s` : behind;
  }

  #level(share) {
    byId("level").style.setProperty("--level", share.toFixed(3));
    byId("level").setAttribute("aria-valuenow", Math.round(100 * share));
  }
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
