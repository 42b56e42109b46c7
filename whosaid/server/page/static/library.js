/* The list of earlier records: finds, opens and deletes them, and shows the bytes that they take. */

import { trouble } from "./database.js";
import { byId, html } from "./dom.js";
import { clock, count, size } from "./format.js";

const SCARCE = 200e6; // free bytes
const TROUBLES = {
  full: "The browser has no room left. Records marked “only in this tab” are lost with it: save them as files, or delete others.",
  blocked: "The browser keeps nothing for this page: records are lost when this tab is closed. Save them as files.",
};

export class Library {
  #found = null; // texts by id, if something is searched for
  #frame = 0;

  /** `page.stateOf(id)` tells of work in progress; `page.onOpen`: the open record was chosen. */
  constructor(records, page) {
    this.records = records;
    this.page = page;
    byId("search").oninput = () => this.#search();
    byId("remove-all").onclick = () => {
      const ended = records.list.filter(({ state }) => state !== "recording");
      this.#remove(ended, `all ${count(ended.length, "recording")} and their transcripts`);
    };
    byId("library").open = matchMedia("(min-width: 56rem)").matches;
  }

  get query() {
    return byId("search").value.trim();
  }

  /** Draw soon: many entries may change at once. */
  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#draw());
  }

  update(id) {
    const state = byId("entries").querySelector(`[data-id="${id}"] .state`);
    if (state) state.textContent = this.#state(this.records.get(id));
  }

  #draw() {
    const { list } = this.records;
    const shown = list.filter(({ id }) => !this.#found || this.#found.has(id));
    const focused = document.activeElement?.closest("#entries li > *");
    byId("library").hidden = !list.length;
    byId("library-count").textContent = list.length;
    byId("entries").replaceChildren(...shown.map((entry) => this.#line(entry)));
    byId("nothing-found").hidden = shown.length > 0;
    const place = `[data-id="${focused?.parentElement.dataset.id}"] ${focused?.localName}`;
    byId("entries").querySelector(place)?.focus();
    this.#showRoom(list);
  }

  #line(entry) {
    const { id, file, state, created, duration } = entry;
    const isOpen = this.page.isOpen(id);
    const date = new Date(created).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    const found = this.#found?.get(id);
    return html`
      <li data-id=${id}>
        <a href="#${id}" dir="auto" ariaCurrent=${isOpen || null} onclick=${isOpen && this.page.onOpen}>${file}</a>
        <button class="remove" title="Delete" aria-label="Delete ${file}" hidden=${state === "recording"}
          onclick=${() => this.#remove([entry], `“${file}” and its transcript`)}>×</button>
        <span class="quiet">${duration ? `${date} · ${clock(duration)}` : date}</span>
        <span class="quiet state ${state}">${this.#state(entry)}</span>
        ${found && html`<q>${found}</q>`}
      </li>
    `;
  }

  #state(entry) {
    const { id, state, names, labels = [], error } = entry;
    const isNamed = labels.some((label) => names[label]);
    const people = isNamed
      ? [...new Set(labels.map((label) => names[label] ?? label))].join(", ")
      : labels.length && count(labels.length, "speaker");
    const said = {
      recording: "Recording",
      kept: "Not transcribed",
      waiting: this.page.stateOf(id),
      failed: `Failed: ${error?.message}`,
      done: people || "Transcribed",
    }[state];
    return this.records.isUnsaved(entry) ? `${said} · only in this tab` : said;
  }

  async #showRoom(list) {
    byId("room").textContent = `${size(this.records.bytesOf(list))}, kept in this browser only.`;
    const wrong = trouble();
    const { quota = Infinity, usage = 0 } = (await navigator.storage?.estimate?.()) ?? {};
    const free = quota - usage;
    const scarce = `The browser has only ${size(Math.max(0, free))} left for this page: delete what you no longer need.`;
    byId("trouble").textContent = wrong ? TROUBLES[wrong] : free < SCARCE ? scarce : "";
  }

  async #search() {
    const { query } = this;
    const found = query ? await this.records.search(query) : null;
    if (query !== this.query) return; // typed on meanwhile
    this.#found = found;
    this.draw();
  }

  #remove(entries, what) {
    const { list } = this.records;
    const gone = entries.map(({ id }) => id);
    const others = list.filter(({ id }) => !gone.includes(id));
    const bytes = size(this.records.bytesOf(list) - this.records.bytesOf(others));
    if (!confirm(`Delete ${what} (${bytes})? This cannot be undone.`)) return;
    this.page.onRemove(gone);
    byId("search").focus();
  }

  refresh() {
    if (this.#found) this.#search();
    else this.draw();
  }
}

let asked = null;

/** Ask the browser once not to clear what is stored by itself. */
export async function askToKeep() {
  const isKept = await (asked ??= navigator.storage?.persist?.()) ?? true;
  byId("may-clear").textContent = isKept ? "" : "The browser may clear it if the disk is full.";
}
