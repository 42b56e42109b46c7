/* What is transcribed next: files that were chosen or dropped, or the files of a record. */

import { byId, html } from "./dom.js";
import { clock, size, stemOf } from "./format.js";
import { MAX_NAME, cleanName } from "./speakers.js";

export class Selection {
  files = [];
  id = ""; // of the record that has the files; "" if they are new
  #seconds = new WeakMap(); // of files that this browser can play
  #tracks = []; // elements with a speaker's name and start, for each file
  #limits = { max_audio_bytes: Infinity, max_audio_seconds: Infinity };

  constructor() {
    byId("tracks").onchange = () => this.#show();
  }

  offer(info) {
    this.#limits = info;
    const limits = `up to ${clock(info.max_audio_seconds)} long and ${size(info.max_audio_bytes)}`;
    byId("formats").textContent = `Any sound or video, ${limits}`;
  }

  /** Take files; measure those that are new. */
  async take(files, id = "") {
    [this.files, this.id] = [files, id];
    byId("tracks").checked = false;
    this.#show();
    const unknown = id ? [] : files.filter((file) => file.size);
    for (const file of unknown) this.#seconds.set(file, await secondsOf(file));
    if (this.files === files && !id) this.#tellFacts();
  }

  /** Names of speakers and seconds from the first start, for each file; {} unless each is of one. */
  get tracks() {
    if (!this.#tracks.length) return {};
    const fields = this.#tracks.map((track) => [...track.querySelectorAll("input")]);
    const seconds = fields.map(([, start]) => Number(start.value));
    const starts = seconds.map((each) => each - Math.min(...seconds));
    return { tracks: fields.map(([name]) => cleanName(name.value)), starts };
  }

  /** The files of each new record; a file that the server would refuse is left out. */
  get groups() {
    if (this.#tracks.length) return [this.files];
    return this.files.filter((file) => !this.#reason(file)).map((file) => [file]);
  }

  /** Why nothing can be transcribed; "" if something can. */
  get reason() {
    if (!this.files.length) return "Choose or record something first.";
    const reasons = this.files.map((file) => this.#reason(file));
    if (this.#tracks.length) return reasons.find(Boolean) ?? "";
    return reasons.every(Boolean) ? reasons[0] : "";
  }

  /** Why the server would refuse a file; "" if unknown. */
  #reason(file) {
    const { max_audio_bytes: bytes, max_audio_seconds: seconds } = this.#limits;
    const given = this.#seconds.get(file) ?? 0;
    if (!file.size) return "The file is empty.";
    if (file.size > bytes)
      return `The file has ${size(file.size)}; this server takes up to ${size(bytes)}.`;
    if (Number.isFinite(given) && given > seconds)
      return `The recording is ${clock(given)} long; this server takes up to ${clock(seconds)}.`;
    return "";
  }

  #show() {
    byId("tracks-field").hidden = this.files.length < 2 || Boolean(this.id);
    this.#tracks = byId("tracks").checked ? this.files.map(trackFields) : [];
    const lines = this.files.map(
      ({ name }, i) => html`<p><b dir="auto">${name}</b> <span /><span class="failure" />${this.#tracks[i]}</p>`,
    );
    byId("chosen").replaceChildren(...lines);
    this.#tellFacts();
  }

  /** Show sizes, lengths and refusals; names may be typed meanwhile. */
  #tellFacts() {
    this.files.forEach((file, i) => {
      const seconds = this.#seconds.get(file);
      const length = Number.isFinite(seconds) ? ` · ${clock(seconds)}` : "";
      const reason = this.files.length > 1 && this.#reason(file);
      const [, facts, refusal] = byId("chosen").children[i].children;
      facts.textContent = size(file.size) + length;
      refusal.textContent = reason ? ` ${reason}` : "";
    });
  }
}

const trackFields = ({ name }) => html`
  <span class="track-fields">
    <input type="text" value=${cleanName(stemOf(name))} maxlength=${MAX_NAME} required aria-label="Who speaks in ${name}" />
    <label>from <input type="number" value="0" min="0" max="86400" step="any" required aria-label="Second at which ${name} begins" /> s</label>
  </span>
`;

/** The length of a file; NaN if this browser cannot play it. */
const secondsOf = (file) =>
  new Promise((resolve) => {
    const audio = new Audio();
    const end = (seconds) => {
      URL.revokeObjectURL(audio.src);
      resolve(seconds);
    };
    audio.preload = "metadata";
    audio.onloadedmetadata = () => end(audio.duration);
    audio.onerror = () => end(NaN);
    audio.src = URL.createObjectURL(file);
  });
