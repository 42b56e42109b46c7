/* The form of options: shows the server's features, and returns the request's parameters. */

import { byId, element } from "./dom.js";
import { count, size } from "./format.js";
import { MAX_NAME, cleanName } from "./speakers.js";

/** Requested for every recording, to play words and download files. */
const ALWAYS = { return_timestamps: "word", output: ["srt", "vtt", "tsv"] };
const NUMBERS = ["num_speakers", "min_speakers", "max_speakers"];
const LIMITS = ["max_line_width", "max_line_count", "max_words_per_line"];
const MOST_LETTERS = 2 ** 18; // of a text that is given
const MOST_CLIP_BYTES = 11e6; // of all clips; a form's field has 16 MiB, and base64 a third more

export class Options {
  #diarization = false; // whether the server has a model for it
  /** @type {{name: HTMLInputElement, reference: string}[]} clips of known people, as data URLs */
  #clips = [];

  constructor(place) {
    this.place = place;
    byId("separate").addEventListener("change", () => this.#layOutSpeakers());
    byId("text").addEventListener("input", measureText);
    measureText();
    byId("clip").onchange = () => this.#takeClips([...byId("clip").files]);
    this.place.open = matchMedia("(min-width: 56rem)").matches;
  }

  /** Show only the options that this server supports (`GET /info`). */
  offer(info) {
    this.#diarization = info.diarization;
    const languages = info.languages.map(({ code, name }) =>
      element("option", { value: code, textContent: name }),
    );
    byId("language").append(...languages);
    byId("language").disabled = !info.multilingual;
    if (!info.multilingual) byId("language").value = info.languages[0].code;
    byId("task-field").hidden = !info.tasks.includes("translate");
    byId("multilingual-field").hidden = !info.multilingual;
    byId("prompt-fields").hidden = !info.prompts;
    this.#layOutSpeakers();
    byId("no-speakers").hidden = info.diarization;
    byId("clips-field").hidden = !info.known_speakers;
    byId("live-field").hidden = info.live_places === null;
  }

  /** Separate channels are the speakers: no diarization. */
  #layOutSpeakers() {
    const separate = byId("separate").checked;
    byId("channel-names-field").hidden = !separate;
    byId("speaker-options").hidden = separate || !this.#diarization;
    byId("subtitle-speakers-field").hidden = !separate && !this.#diarization;
  }

  /** Whether speakers are requested. */
  get diarizes() {
    return this.#diarization && byId("diarize").checked;
  }

  /** Whether live words are requested. */
  get live() {
    return !byId("live-field").hidden && byId("live").checked;
  }

  /** The request's parameters, without defaults; null if a value is impossible. */
  read() {
    if (!isValid(this.place)) return null;
    const parameters = { ...ALWAYS, ...numbers(LIMITS) };
    if (this.diarizes || byId("separate").checked) parameters.output = [...ALWAYS.output, "rttm"];
    if (byId("highlight_words").checked) parameters.highlight_words = true;
    if (!byId("subtitle_speakers").checked) parameters.subtitle_speakers = false;
    const language = byId("language");
    if (!language.disabled && language.value) parameters.language = language.value;
    if (this.place.querySelector("[name=task]:checked").value === "translate")
      parameters.task = "translate";
    if (byId("multilingual").checked) parameters.multilingual = true;
    if (Number(byId("num_beams").value) > 1) parameters.num_beams = Number(byId("num_beams").value);
    if (byId("prompt").value.trim()) parameters.prompt = byId("prompt").value;
    const hotwords = listed("hotwords");
    if (hotwords.length) parameters.hotwords = hotwords;
    if (byId("text").value.trim()) parameters.text = byId("text").value;
    return { ...parameters, ...this.#speakers() };
  }

  #speakers() {
    if (byId("separate").checked) {
      const names = listed("channel_names");
      return { channels: "separate", ...(names.length && { channel_names: names }) };
    }
    if (!this.#diarization) return {};
    if (!this.diarizes) return { diarize: false };
    const known = this.#clips.map(({ name, reference }) => ({ name: name.value, reference }));
    return { ...numbers(NUMBERS), ...(known.length && { known_speakers: known }) };
  }

  /** Each clip gets a line with the person's name, at first the file's. */
  async #takeClips(files) {
    const bytes = files.reduce((sum, { size }) => sum + size, this.#bytesOfClips);
    byId("clip").value = "";
    if (bytes > MOST_CLIP_BYTES) {
      byId("clip").setCustomValidity(`All clips together may have ${size(MOST_CLIP_BYTES)}.`);
      byId("clip").reportValidity();
      byId("clip").setCustomValidity("");
      return;
    }
    for (const file of files) {
      const clip = { name: nameField(file), reference: await dataUrl(file) };
      const remove = element("button", { type: "button", textContent: "Remove" });
      const line = element("li", {}, clip.name, remove);
      remove.onclick = () => {
        this.#clips = this.#clips.filter((each) => each !== clip);
        line.remove();
        byId("clip").focus();
      };
      this.#clips.push(clip);
      byId("clips").append(line);
    }
  }

  get #bytesOfClips() {
    return this.#clips.reduce((sum, { reference }) => sum + (3 / 4) * reference.length, 0);
  }
}

const nameField = (file) =>
  element("input", {
    type: "text",
    value: cleanName(file.name.replace(/\.[^.]*$/, "")),
    maxLength: MAX_NAME,
    required: true,
    title: file.name,
    "aria-label": `Who speaks in ${file.name}`,
  });

/** @returns {Promise<string>} empty if the file cannot be read */
const dataUrl = (file) =>
  new Promise((resolve) => {
    const reader = new FileReader();
    reader.onloadend = () => resolve(String(reader.result ?? ""));
    reader.readAsDataURL(file);
  });

/** The fields of numbers that are filled in. */
function numbers(names) {
  const given = names.filter((name) => byId(name).value);
  return Object.fromEntries(given.map((name) => [name, Number(byId(name).value)]));
}

/** Whether all fields are possible; else the browser shows which is not. */
function isValid(place) {
  for (const field of place.querySelectorAll("input, textarea")) {
    if (field.checkValidity()) continue;
    for (let fold = field.closest("details"); fold; fold = fold.parentElement.closest("details"))
      fold.open = true;
    field.reportValidity();
    return false;
  }
  return true;
}

/** Show the length of the given text, even if its field is folded: it is for one recording. */
function measureText() {
  const { value } = byId("text");
  const tooLong = [...value].length > MOST_LETTERS;
  byId("text").setCustomValidity(tooLong ? `At most ${MOST_LETTERS} letters, please.` : "");
  const words = value.split(/\s+/).filter(Boolean).length;
  byId("text-size").textContent = words ? `· ${count(words, "word")}` : "";
}

/** The comma-separated values of a field. */
const listed = (id) =>
  byId(id)
    .value.split(",")
    .map((word) => word.trim())
    .filter(Boolean);
