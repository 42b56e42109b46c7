/* The progress of a recording, and its display as text and as a bar. */

import { byId } from "./dom.js";
import { clock, roughly, size } from "./format.js";

export class Progress {
  stage = "Waiting for its turn";
  detail = "";
  share = null; // if it is known
  chunks = []; // text so far, of a recording whose connection is held
  #speechBegan = 0;
  #written = 0; // the share of speech

  constructor(onChange) {
    this.onChange = onChange;
  }

  get short() {
    return this.share === null ? this.stage : `${this.stage} ${Math.round(100 * this.share)}%`;
  }

  sent(bytes, total) {
    if (bytes >= total) this.say("Sent; waiting for the server to begin");
    else this.say("Sending the recording", `${size(bytes)} of ${size(total)}`, bytes / total);
  }

  decoded(seconds) {
    this.#speechBegan = performance.now();
    this.say("Listening for speech", `in ${clock(seconds)} of audio`);
  }

  /**
   * So many seconds of speech are done; with `diarizes` speakers come after the text. The total is
   * an estimate while the server still looks for speech: the bar never goes back.
   */
  transcribed(done, total, diarizes) {
    if (done >= total) {
      const rest = diarizes ? "working out who said what" : "finishing";
      this.say(`All is written down; ${rest}`);
      return;
    }
    this.#speechBegan ||= performance.now();
    const seconds = (performance.now() - this.#speechBegan) / 1000;
    // The first windows tell little: they waited for speech to be found.
    const isKnown = done > total / 10;
    const left = isKnown ? ` · ${roughly((seconds / done) * (total - done))} left` : "";
    const detail = `${clock(done)} of about ${clock(total)} of speech${left}`;
    this.#written = Math.max(this.#written, done / total);
    this.say("Writing down what is said", detail, this.#written);
  }

  say(stage, detail = "", share = null) {
    Object.assign(this, { stage, detail, share });
    this.onChange();
  }
}

let timer = 0;

/** Show the progress of work that began then (milliseconds since 1970), or none. */
export function showProgress(progress, began, announce) {
  clearInterval(timer);
  byId("progress").hidden = !progress;
  const { stage = "", detail = "", share = null } = progress ?? {};
  if (stage && byId("stage").textContent !== stage) announce(stage);
  byId("stage").textContent = stage;
  byId("stage-detail").textContent = detail;
  if (share === null) byId("bar").removeAttribute("value");
  else byId("bar").value = share;
  const tick = () => (byId("elapsed").textContent = clock((Date.now() - began) / 1000));
  if (!progress) return;
  tick();
  timer = setInterval(tick, 1000);
}
