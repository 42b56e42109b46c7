/* Shows the text: turns under their speakers' names, and words that can be played. */

import { blocksOf } from "./blocks.js";
import { element } from "./dom.js";
import { clock } from "./format.js";

/** @typedef {{element: HTMLElement, start: number, end: number}} TimedWord seconds */

export class Transcript {
  /** @type {TimedWord[]} in order of time */
  #words = [];
  /** @type {TimedWord | null} the word that is said */
  #now = null;
  /** @type {HTMLElement | null} the word that was said last */
  #last = null;
  /** @type {Map<string, HTMLElement>} parts that still change, by name */
  #parts = new Map();

  constructor(place, onPlay) {
    this.place = place;
    const play = (item) => onPlay(Number(item.dataset.at));
    place.addEventListener("click", (event) => {
      const item = event.target.closest("[data-at]");
      if (item) play(item);
    });
    place.addEventListener("keydown", (event) => {
      const item = event.target.closest("[data-at]");
      if (!item) return;
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") play(item);
      else if (step) this.#neighbour(item, step)?.focus();
      else return;
      event.preventDefault();
    });
  }

  clear() {
    this.place.replaceChildren();
    this.#words = [];
    this.#now = this.#last = null;
    this.#parts.clear();
  }

  /** Append text whose speakers are not known yet. */
  hear(chunks) {
    this.place.append(...chunks.map((chunk) => this.#turn(chunk, null)));
  }

  /**
   * Show a part that still changes: blocks with a guess as `unstable`, behind their text. The page
   * scrolls along with a person who watches the end.
   */
  follow(id, blocks, speakers) {
    const last = this.place.lastElementChild;
    const watched = !last || endIsVisible(last);
    let part = this.#parts.get(id);
    if (!part) {
      part = element("div");
      this.#parts.set(id, part);
      this.place.append(part);
    }
    part.replaceChildren(...blocks.map((block) => this.#turn(block, speakers)));
    const end = this.place.lastElementChild;
    if (watched && !endIsVisible(end)) end.scrollIntoView({ block: "end" });
  }

  /** Remove a part. */
  forget(id) {
    this.#parts.get(id)?.remove();
    this.#parts.delete(id);
  }

  draw(answer, speakers) {
    this.clear();
    const blocks = blocksOf(answer, speakers);
    this.place.append(...blocks.map((block) => this.#turn(block, speakers)));
    const textContent = answer.unspoken ? "None of your text is spoken." : "No speech was found.";
    if (!blocks.length) this.place.append(element("p", { className: "quiet", textContent }));
  }

  /**
   * Mark the word that is said at a moment. The page scrolls along with a person who watches, and
   * not if the person has scrolled away.
   */
  mark(seconds) {
    const word = this.#wordAt(seconds);
    if (word === this.#now) return;
    this.#now?.element.classList.remove("now");
    this.#now = word;
    if (!word) return;
    word.element.classList.add("now");
    const watched = !this.#last || isVisible(this.#last);
    this.#last = word.element;
    if (watched && !isVisible(word.element)) word.element.scrollIntoView({ block: "center" });
  }

  /** The word that is said at a moment, by bisection: there may be twenty thousand. */
  #wordAt(seconds) {
    let [low, high] = [0, this.#words.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#words[middle].start <= seconds) low = middle + 1;
      else high = middle;
    }
    const word = this.#words[low - 1];
    return word && seconds < word.end ? word : null;
  }

  #neighbour(item, step) {
    if (item.matches(".word")) {
      const place = this.#words.findIndex((word) => word.element === item);
      return this.#words[place + step]?.element;
    }
    const first = item.closest(".turn").querySelector(".word");
    return step > 0 ? first : this.#neighbour(first, step);
  }

  #turn(block, speakers) {
    const [at] = block.timestamp;
    const colour = block.speaker ? speakers.colourOf(block.speaker) : "";
    // What still changes cannot be played yet, and would take the focus away with it.
    const time =
      block.unstable === undefined
        ? timeButton(at)
        : element("span", { className: "at", textContent: clock(at) });
    return element(
      "div",
      { className: `turn ${colour}` },
      element(
        "p",
        { className: "head" },
        ...nameOf(block.speaker, speakers),
        time,
      ),
      element("p", { className: "text", dir: "auto" }, ...this.#text(block)),
    );
  }

  /** The words one by one; spaces stay outside of them, so that a line may break there. */
  #text(block) {
    if (block.unstable !== undefined) {
      const unstable = element("span", { className: "unstable", textContent: block.unstable });
      return [block.text.trimStart(), unstable];
    }
    if (!block.words?.length) return [block.text.trim()];
    return block.words.flatMap((word) => {
      const said = word.word.trim();
      if (!said) return [" "];
      const [start, end] = word.timestamp;
      const made = element("span", {
        className: "word",
        textContent: said,
        tabIndex: -1,
        dataset: { at: start },
      });
      if (word.overlap) {
        made.classList.add("overlap");
        made.title = "Spoken while another voice is heard";
      }
      this.#words.push({ element: made, start, end });
      return [/^\s/.test(word.word) ? " " : "", made, /\s$/.test(word.word) ? " " : ""];
    });
  }
}

/** A button with a time, for a listener to play from there. */
export const timeButton = (at) =>
  element("button", {
    type: "button",
    className: "at",
    textContent: clock(at),
    title: "Play from here",
    dataset: { at },
  });

/** A speaker's name; empty without diarization. */
function nameOf(label, speakers) {
  if (label === undefined) return [];
  if (label === null) {
    const title = "No voice was told apart near these words";
    return [element("span", { className: "quiet", textContent: "Unknown speaker", title })];
  }
  const name = { className: "name", dir: "auto", textContent: speakers.nameOf(label) };
  return [element("b", { ...name, dataset: { speaker: label } })];
}

/** Whether its lower edge is on the screen. */
function endIsVisible(element) {
  const { bottom } = element.getBoundingClientRect();
  return bottom > 0 && bottom <= window.innerHeight;
}

function isVisible(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < window.innerHeight;
}
