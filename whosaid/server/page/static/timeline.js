/* Who spoke when: a lane for each speaker, whose name can be typed over. */

import { html } from "./dom.js";
import { clock } from "./format.js";
import { MAX_NAME } from "./speakers.js";

// Seconds between the axis' marks: the first that gives at most MOST_MARKS.
const MARKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
const MOST_MARKS = 8;
const ZOOM = 4; // times as close, or as far
const CLOSEST = 60; // seconds that are shown at least
const PARTS = 1000; // of the width; bars with a smaller gap are drawn as one
const UNWRITTEN = "Speech without text";

export class Timeline {
  #duration = 1;
  #from = 0; // what is shown, in seconds
  #span = 1;
  #now = 0;
  #speakers = null;
  #unwritten = []; // spans that hold speech without text
  #lanes = html`<div class="lanes" />`;
  #scale = html`<div class="track" aria-hidden="true" />`;
  #wider = this.#lens("−", "Show more time", 1 / ZOOM);
  #closer = this.#lens("+", "Show less time", ZOOM);
  #rows = new Map(); // lanes by label; "" is that of speech without text
  #percent = (seconds) => `${((100 * seconds) / this.#span).toFixed(3)}%`;

  /** `onRename(label, name)` returns the accepted name. */
  constructor(place, { onSeek, onRename }) {
    this.place = place;
    const lens = html`<div class="lens">${this.#wider}${this.#closer}</div>`;
    place.append(this.#lanes, html`<div class="axis">${lens}${this.#scale}</div>`);
    place.addEventListener("click", (event) => {
      const track = event.target.closest(".lane .track");
      if (!track) return;
      const { left, width } = track.getBoundingClientRect();
      onSeek(this.#from + Math.max(0, (event.clientX - left) / width) * this.#span);
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
    place.addEventListener("keydown", (event) => {
      const { key, target } = event;
      if (!target.matches("input") || !["Enter", "Escape"].includes(key)) return;
      event.preventDefault(); // else the key goes on to what gets the focus
      if (key === "Escape") target.value = target.defaultValue;
      target.blur();
    });
  }

  draw(speakers, { duration, unwritten = [] }) {
    if (duration !== this.#duration) [this.#duration, this.#from, this.#span] = [duration, 0, duration];
    [this.#speakers, this.#unwritten] = [speakers, unwritten];
    this.#redraw();
  }

  #redraw() {
    const speakers = this.#speakers;
    const lanes = speakers.labels.map((label) => {
      const turns = speakers.turns.filter((turn) => turn.speaker === label);
      return this.#lane(label, speakers.colourOf(label), turns, "Spoken");
    });
    if (this.#unwritten.length) lanes.push(this.#lane("", "unwritten", this.#unwritten, UNWRITTEN));
    // A field that is moved loses the focus, and with it the rest of a name.
    const { children } = this.#lanes;
    for (const lane of [...children]) if (!lanes.includes(lane)) lane.remove();
    lanes.forEach((lane, i) => lane === children[i] || this.#lanes.insertBefore(lane, children[i]));
    this.#drawAxis();
    this.place.hidden = !lanes.length;
  }

  mark(seconds) {
    this.#now = seconds;
    if (seconds < this.#from || seconds > this.#from + this.#span) this.#show(seconds);
    this.place.style.setProperty("--now", String((seconds - this.#from) / this.#span));
  }

  /** Show this second, near the left edge. */
  #show(seconds) {
    if (!this.#speakers) return;
    const last = this.#duration - this.#span;
    this.#from = Math.min(Math.max(seconds - this.#span / 10, 0), last);
    this.#redraw();
  }

  #zoom(factor) {
    this.#span = Math.min(Math.max(this.#span / factor, CLOSEST), this.#duration);
    this.#show(this.#now);
    this.mark(this.#now);
  }

  /** An empty lane. */
  #row(label) {
    const name = label
      ? html`<input type="text" maxlength=${MAX_NAME} spellcheck=${false} autocomplete="off" title="Click to rename"
          aria-label="Name of ${label}" data-speaker=${label} />`
      : html`<span title=${UNWRITTEN}>No text</span>`;
    return html`<div>${name}<div class="track" aria-hidden="true" /><span class="share" /></div>`;
  }

  /** A name, bars where the spans are, and how long they last together. */
  #lane(label, className, spans, title) {
    if (!this.#rows.has(label)) this.#rows.set(label, this.#row(label));
    const lane = this.#rows.get(label);
    const [name, track, share] = lane.children;
    name.defaultValue = this.#speakers.nameOf(label);
    if (name !== document.activeElement) name.value = name.defaultValue;
    const seconds = spans.reduce((sum, { start, end }) => sum + end - start, 0);
    const bars = this.#visible(spans).map(({ start, end }) => {
      const bar = html`<i title="${title}: ${clock(start)} to ${clock(end)}" />`;
      bar.style.left = this.#percent(start - this.#from);
      bar.style.width = this.#percent(end - start);
      return bar;
    });
    track.replaceChildren(...bars);
    Object.assign(share, { title, textContent: clock(seconds) });
    lane.className = `lane ${className}`;
    return lane;
  }

  /** What is shown of spans, at most PARTS of them. */
  #visible(spans) {
    const shown = [];
    for (const { start, end } of spans) {
      if (end < this.#from || start > this.#from + this.#span) continue;
      const last = shown.at(-1);
      if (last && start - last.end < this.#span / PARTS) last.end = Math.max(last.end, end);
      else shown.push({ start, end });
    }
    return shown;
  }

  #drawAxis() {
    const step = MARKS.find((each) => this.#span / each <= MOST_MARKS) ?? 3600;
    const marks = [];
    // The last mark keeps clear of the end, where its label would be cut.
    const first = Math.ceil(this.#from / step) * step;
    for (let at = first; at <= this.#from + this.#span - step / 3; at += step) {
      const mark = html`<span>${clock(at)}</span>`;
      mark.style.left = this.#percent(at - this.#from);
      marks.push(mark);
    }
    this.#scale.replaceChildren(...marks);
    for (const each of [this.#wider, this.#closer]) each.hidden = this.#duration < ZOOM * CLOSEST;
    this.#wider.ariaDisabled = this.#span < this.#duration ? null : "true";
    this.#closer.ariaDisabled = this.#span > CLOSEST ? null : "true";
  }

  #lens(sign, label, factor) {
    return html`<button class="plain" aria-label=${label} onclick=${() => this.#zoom(factor)}>${sign}</button>`;
  }
}
