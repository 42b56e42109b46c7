/* Shows text that is still being written. */

import { html } from "./dom.js";
import { clock } from "./format.js";

export class Transcript {
  #parts = new Map(); // elements of text that still changes, by name

  constructor(place) {
    this.place = place;
  }

  clear() {
    this.place.replaceChildren();
    this.#parts.clear();
  }

  /** Append text whose speakers are not known yet. */
  hear(chunks) {
    this.place.append(...chunks.map((chunk) => turnOf(chunk, null)));
  }

  /** Show a part that still changes; the page scrolls along with a person who watches the end. */
  follow(id, blocks, speakers) {
    const last = this.place.lastElementChild;
    const isWatched = !last || endIsVisible(last);
    const part = this.#parts.get(id) ?? html`<div />`;
    this.#parts.set(id, part);
    if (!part.parentElement) this.place.append(part);
    part.replaceChildren(...blocks.map((block) => turnOf(block, speakers)));
    const end = this.place.lastElementChild;
    if (isWatched && !endIsVisible(end)) end.scrollIntoView({ block: "end" });
  }

  forget(id) {
    this.#parts.get(id)?.remove();
    this.#parts.delete(id);
  }
}

function turnOf({ speaker, text, timestamp: [at], unstable = "" }, speakers) {
  const name = speaker ? speakers.nameOf(speaker) : "Unknown speaker";
  return html`
    <div class="turn ${speaker ? speakers.colourOf(speaker) : ""}">
      <p class="head">
        ${speaker !== undefined && html`<b class=${speaker ? "name" : "nobody"} dir="auto">${name}</b>`}
        <span class="at">${clock(at)}</span>
      </p>
      <p class="text" dir="auto">${text.trimStart()}<span class="unstable">${unstable}</span></p>
    </div>
  `;
}

function endIsVisible(element) {
  const { bottom } = element.getBoundingClientRect();
  return bottom > 0 && bottom <= window.innerHeight;
}
