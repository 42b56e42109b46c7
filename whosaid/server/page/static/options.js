/* The form of options: shows the server's features, and returns the request's parameters. */

import { newId, readAll, write } from "./database.js";
import { byId, html } from "./dom.js";
import { count, size, stemOf } from "./format.js";
import { MAX_NAME, cleanName } from "./speakers.js";

const ALWAYS = { return_timestamps: "word" }; // to play words
const MOST_LETTERS = 2 ** 18; // of a text that is given
const MOST_CLIP_BYTES = 11e6; // of all clips; a form's field has 16 MiB, and base64 a third more

export class Options {
  #diarization = false; // whether the server has a model for it
  #clips = []; // of known people; a `reference` is a data URL

  constructor(place) {
    this.place = place;
    byId("separate").onchange = byId("diarize").onchange = () => this.#layOutSpeakers();
    byId("text").oninput = measureText;
    measureText();
    byId("clip").onchange = () => this.#takeClips([...byId("clip").files]);
    this.place.open = matchMedia("(min-width: 56rem)").matches;
  }

  /** Show the options that this server supports (`GET /info`), and the clips of this browser. */
  async offer(info) {
    this.#diarization = info.diarization;
    const languages = info.languages.map(({ code, name }) => html`<option value=${code}>${name}</option>`);
    byId("language").append(...languages);
    byId("language").disabled = !info.multilingual;
    if (!info.multilingual) byId("language").value = info.languages[0].code;
    const isShown = {
      "task-field": info.tasks.includes("translate"),
      "multilingual-field": info.multilingual,
      "prompt-fields": info.prompts,
      "no-speakers": !info.diarization,
      "clips-field": info.known_speakers,
      "live-field": info.live_places !== null,
    };
    for (const [id, value] of Object.entries(isShown)) byId(id).hidden = !value;
    this.#layOutSpeakers();
    for (const voice of await readAll("clips")) this.#show(voice);
  }

  /** Separate channels are the speakers: no diarization. */
  #layOutSpeakers() {
    const separate = byId("separate").checked;
    show("channel-names-field", separate);
    show("speaker-options", !separate && this.#diarization);
    byId("diarize-options").disabled = !byId("diarize").checked;
    byId("subtitle-speakers-field").hidden = !separate && !this.#diarization;
  }

  get diarizes() {
    return this.#diarization && byId("diarize").checked;
  }

  get live() {
    return !byId("live-field").hidden && byId("live").checked;
  }

  /** The request's parameters, for files of one speaker each if there are `tracks`; null if impossible. */
  read({ tracks, starts } = {}) {
    checkNumbers();
    if (!isValid(this.place)) return null;
    const isSent = (field) => !field.closest(`#file-options${tracks ? ", #speakers" : ""}`);
    const fields = [...this.place.querySelectorAll("[name]")].filter(isSent);
    const used = this.#clips.filter(({ isUsed }) => isUsed);
    const known = used.map(({ name, reference }) => ({ name, reference }));
    const hasKnown = known.length && !tracks && this.diarizes && !byId("separate").checked;
    return {
      ...ALWAYS,
      ...((this.diarizes || byId("separate").checked) && { output: ["rttm"] }),
      ...valuesOf(fields),
      ...(hasKnown && { known_speakers: known }),
      ...(tracks && { channel_names: tracks }),
      ...(starts?.some(Boolean) && { channel_starts: starts }),
    };
  }

  /** The layout of files; null if a value is impossible. */
  layout() {
    const place = byId("file-options");
    return isValid(place) ? valuesOf([...place.querySelectorAll("[name]")]) : null;
  }

  /** Take clips: each is at first named as its file. */
  async #takeClips(files) {
    byId("clip").value = "";
    for (const file of files) await this.keep(file, stemOf(file.name));
    byId("clip").reportValidity();
  }

  async keep(file, name) {
    const reference = await dataUrl(file);
    const voice = { id: newId(), name: cleanName(name), reference, file: file.name, isUsed: true };
    await write([["clips", voice]]);
    this.#show(voice);
  }

  /** The clips of a request have a limit. */
  #weigh() {
    const used = this.#clips.filter(({ isUsed }) => isUsed);
    const bytes = used.reduce((sum, { reference }) => sum + (3 / 4) * reference.length, 0);
    const reason = `All clips in use may have ${size(MOST_CLIP_BYTES)} together.`;
    byId("clip").setCustomValidity(bytes > MOST_CLIP_BYTES ? reason : "");
  }

  /** A line with the person's name, and whether the clip is used. */
  #show(voice) {
    this.#clips.push(voice);
    const { file, name, isUsed } = voice;
    const line = html`
      <li>
        <input type="checkbox" checked=${isUsed} aria-label="Use ${file}" />
        <input type="text" value=${name} maxlength=${MAX_NAME} required title=${file} aria-label="Who speaks in ${file}" />
        <button type="button">Remove</button>
      </li>
    `;
    const [use, field, remove] = line.children;
    line.onchange = () => {
      Object.assign(voice, { name: field.value, isUsed: use.checked });
      this.#weigh();
      write([["clips", voice]]);
    };
    remove.onclick = () => {
      this.#clips = this.#clips.filter((each) => each !== voice);
      write([], [["clips", voice.id]]);
      line.remove();
      this.#weigh();
      byId("clip").focus();
    };
    byId("clips").append(line);
    this.#weigh();
  }
}

/** Show a group of fields, or hide it and send none of them. */
function show(id, isShown) {
  byId(id).hidden = byId(id).disabled = !isShown;
}

const dataUrl = (file) =>
  new Promise((resolve) => {
    const reader = new FileReader();
    reader.onloadend = () => resolve(String(reader.result ?? ""));
    reader.readAsDataURL(file);
  });

/** The parameters of fields that can be used and are filled in. */
function valuesOf(fields) {
  const used = fields.filter((field) => field.matches(":enabled") && valueOf(field) !== "");
  return Object.fromEntries(used.map((field) => [field.name, valueOf(field)]));
}

function valueOf({ type, value, checked, dataset }) {
  if (type === "checkbox" && value === "on") return checked;
  if (["checkbox", "radio"].includes(type)) return checked ? value : "";
  if ("list" in dataset) return value.split(/[,\n]/).map((each) => each.trim()).filter(Boolean);
  return type === "number" && value ? Number(value) : value.trim() && value;
}

/** Let the browser say which numbers of speakers contradict each other. */
function checkNumbers() {
  const [exact, least, most] = ["num", "min", "max"].map((id) => Number(byId(`${id}_speakers`).value));
  const isWrong = (least && most && least > most) || (exact && (exact < least || exact > (most || exact)));
  const line = isWrong ? "“How many”, “At least” and “At most” contradict each other." : "";
  byId("num_speakers").setCustomValidity(line);
}

/** Whether all fields are possible; else the browser shows which is not. */
export function isValid(place) {
  const wrong = place.querySelector(":is(input, textarea):invalid");
  let fold = wrong?.closest("details");
  for (; fold; fold = fold.parentElement.closest("details")) fold.open = true;
  return wrong?.reportValidity() ?? true;
}

/** Show the length of the given text, even if its field is folded: it is for one recording. */
function measureText() {
  const { value } = byId("text");
  const tooLong = [...value].length > MOST_LETTERS;
  byId("text").setCustomValidity(tooLong ? `At most ${MOST_LETTERS} letters, please.` : "");
  const words = value.split(/\s+/).filter(Boolean).length;
  byId("text-size").textContent = words ? `· ${count(words, "word")}` : "";
}
