/* Who spoke when: a lane for each speaker, whose name can be typed over. */

import { element } from "./dom.js";
import { clock } from "./format.js";
import { MAX_NAME } from "./speakers.js";

// Seconds between the axis' marks: the first that gives at most MOST_MARKS.
const MARKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
const MOST_MARKS = 8;
const UNWRITTEN = "Speech without text";

export class Timeline {
  #duration = 1;

  /** `onRename(label, name)` returns the accepted name. */
  constructor(place, { onSeek, onRename }) {
    this.place = place;
    place.addEventListener("click", (event) => {
      const track = event.target.closest(".lane .track");
      if (!track) return;
      const { left, width } = track.getBoundingClientRect();
      onSeek(Math.max(0, (event.clientX - left) / width) * this.#duration);
    });
    // A click selects the name, so that typing replaces it.
    place.addEventListener("mousedown", (event) => {
      if (!event.target.matches("input") || event.target === document.activeElement) return;
      event.preventDefault();
      event.target.select();
      event.target.focus();
    });
    place.addEventListener("change", ({ target }) => {
      target.value = onRename(target.dataset.speaker, target.value);
    });
  }

  /** Draw who spoke when; `unwritten` spans hold speech without text. */
  draw(speakers, { duration, unwritten = [] }) {
    this.#duration = duration;
    const lanes = speakers.labels.map((label) => this.#speakerLane(label, speakers));
    if (unwritten.length) {
      const name = element("span", { textContent: "No text", title: UNWRITTEN });
      lanes.push(this.#lane("unwritten", name, unwritten, UNWRITTEN));
    }
    this.place.replaceChildren(...lanes, ...(lanes.length ? [this.#axis()] : []));
    this.place.hidden = !lanes.length;
  }

  /** Show where the recording is played. */
  mark(seconds) {
    this.place.style.setProperty("--now", String(seconds / this.#duration));
  }

  #speakerLane(label, speakers) {
    const turns = speakers.turns.filter((turn) => turn.speaker === label);
    const name = element("input", {
      type: "text",
      value: speakers.nameOf(label),
      maxLength: MAX_NAME,
      spellcheck: false,
      autocomplete: "off",
      title: "Click to rename",
      "aria-label": `Name of ${label}`,
      dataset: { speaker: label },
    });
    return this.#lane(speakers.colourOf(label), name, turns, "Spoken");
  }

  /** A name, bars where the spans are, and how long they last together. */
  #lane(className, name, spans, title) {
    const seconds = spans.reduce((sum, { start, end }) => sum + end - start, 0);
    return element(
      "div",
      { className: `lane ${className}` },
      name,
      element(
        "div",
        { className: "track", "aria-hidden": true },
        ...spans.map((span) => this.#bar(span, title)),
      ),
      element("span", { className: "share", title, textContent: clock(seconds) }),
    );
  }

  #bar({ start, end }, title) {
    const bar = element("i", { title: `${title}: ${clock(start)} to ${clock(end)}` });
    bar.style.left = this.#percent(start);
    bar.style.width = this.#percent(end - start);
    return bar;
  }

  #axis() {
    const step = MARKS.find((each) => this.#duration / each <= MOST_MARKS) ?? 3600;
    const track = element("div", { className: "track" });
    // The last mark keeps clear of the end, where its label would be cut.
    for (let at = 0; at <= this.#duration - step / 3; at += step) {
      const mark = element("span", { textContent: clock(at) });
      mark.style.left = this.#percent(at);
      track.append(mark);
    }
    return element("div", { className: "axis", "aria-hidden": true }, track);
  }

  #percent(seconds) {
    return `${((100 * seconds) / this.#duration).toFixed(3)}%`;
  }
}
