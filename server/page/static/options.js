/* The form of options: laid out by what the server can do, read as the request's parameters. */

import { byId, element } from "./dom.js";

/** Asked of every recording: the page plays words, and shows when somebody speaks. */
const ALWAYS = { return_timestamps: "word" };
const TURNS = { output: ["rttm"] };
const NUMBERS = ["num_speakers", "min_speakers", "max_speakers"];

export class Options {
  #diarization = false;

  /**
   * @param {HTMLElement} place
   */
  constructor(place) {
    this.place = place;
  }

  /**
   * Offer what this server can do, and nothing else.
   * @param {any} info the answer of `GET /info`
   */
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
    byId("assisted-field").hidden = !info.drafts;
    byId("drafter").textContent = info.drafts === "medusa" ? "Medusa heads" : "a smaller model";
    byId("prompt-fields").hidden = !info.prompts;
    byId("speaker-options").hidden = !info.diarization;
    byId("no-speakers").hidden = info.diarization;
    byId("live-field").hidden = info.live_places === null;
  }

  /** Whether speakers are asked for. */
  get diarizes() {
    return this.#diarization && byId("diarize").checked;
  }

  /** Whether words are wanted while somebody speaks. */
  get live() {
    return !byId("live-field").hidden && byId("live").checked;
  }

  /**
   * What the request asks for: what was left alone is not sent. Null where a value is impossible;
   * the browser then shows which.
   */
  read() {
    for (const field of this.place.querySelectorAll("input, textarea")) {
      if (field.checkValidity()) continue;
      field.closest("details").open = true;
      field.reportValidity();
      return null;
    }
    const parameters = { ...ALWAYS, ...(this.diarizes && TURNS) };
    const language = byId("language");
    if (!language.disabled && language.value) parameters.language = language.value;
    if (this.place.querySelector("[name=task]:checked").value === "translate")
      parameters.task = "translate";
    for (const name of ["multilingual", "assisted"])
      if (byId(name).checked) parameters[name] = true;
    if (Number(byId("num_beams").value) > 1) parameters.num_beams = Number(byId("num_beams").value);
    if (byId("prompt").value.trim()) parameters.prompt = byId("prompt").value;
    const hotwords = byId("hotwords")
      .value.split(",")
      .map((word) => word.trim())
      .filter(Boolean);
    if (hotwords.length) parameters.hotwords = hotwords;
    return { ...parameters, ...this.#speakers() };
  }

  #speakers() {
    if (!this.#diarization) return {};
    if (!this.diarizes) return { diarize: false };
    const given = NUMBERS.filter((name) => byId(name).value);
    return Object.fromEntries(given.map((name) => [name, Number(byId(name).value)]));
  }
}
