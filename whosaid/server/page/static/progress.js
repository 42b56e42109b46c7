/* Shows the progress of a recording, as text and as a bar. */

import { byId } from "./dom.js";
import { clock, roughly, size } from "./format.js";

export class Progress {
  #began = 0;
  #speechBegan = 0;
  #timer = 0;

  /** `announce` announces each stage to screen readers once. */
  constructor(announce) {
    this.announce = announce;
  }

  start() {
    this.#began = performance.now();
    this.#speechBegan = 0;
    byId("progress").hidden = false;
    this.#say("Sending the recording");
    this.#tick();
    this.#timer = setInterval(() => this.#tick(), 1000);
  }

  end() {
    clearInterval(this.#timer);
    byId("progress").hidden = true;
  }

  sent(bytes, total) {
    if (bytes >= total) this.#say("Sent; waiting for the server to begin");
    else this.#say("Sending the recording", `${size(bytes)} of ${size(total)}`, bytes / total);
  }

  waiting() {
    this.#say("Waiting for its turn on the server");
  }

  lost() {
    this.#say("The server cannot be reached; trying again");
  }

  decoded(seconds) {
    this.#speechBegan = performance.now();
    this.#say("Listening for speech", `in ${clock(seconds)} of audio`);
  }

  /** So many seconds of speech are done; with `diarizes` speakers come after the text. */
  transcribed(done, total, diarizes) {
    if (done >= total) {
      const rest = diarizes ? "working out who said what" : "finishing";
      this.#say(`All is written down; ${rest}`);
      return;
    }
    this.#speechBegan ||= performance.now();
    const seconds = (performance.now() - this.#speechBegan) / 1000;
    // The first windows tell little: they waited for speech to be found.
    const known = done > total / 10;
    const left = known ? ` · ${roughly((seconds / done) * (total - done))} left` : "";
    this.#say(
      "Writing down what is said",
      `${clock(done)} of ${clock(total)} of speech${left}`,
      done / total,
    );
  }

  /** If the share is unknown (null), the bar only shows activity. */
  #say(stage, detail = "", share = null) {
    if (byId("stage").textContent !== stage || !byId("announcement").textContent)
      this.announce(stage);
    byId("stage").textContent = stage;
    byId("stage-detail").textContent = detail;
    if (share === null) byId("bar").removeAttribute("value");
    else byId("bar").value = share;
  }

  #tick() {
    byId("elapsed").textContent = clock((performance.now() - this.#began) / 1000);
  }
}
