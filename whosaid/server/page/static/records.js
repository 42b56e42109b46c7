/* The records of this browser: a recording with its transcript each, of this tab and of others. */

import * as database from "./database.js";
import { wavFile } from "./microphone.js";

/* A record's entry in the list has an `id`; a `version`, which grows with every transcript and
   correction; its `file`'s name, `bytes` and `duration` in seconds; `created` and `began` (when it was
   sent) in milliseconds since 1970; `recordings`, keys of its files: one, or one for each speaker, whose
   names are its `tracks`, and whose seconds of begin, one of them 0, its `starts`. Its `state` is
   "recording" (`rate` samples a second), "kept", "waiting" (for whichever tab comes first, with the
   request's `parameters` and, on the server, its `job`), "done" or "failed" (an `error`). `diarizes`
   and `isLive` tell how its answer was made, in how many `seconds`; of a live session they are the
   delay of most words. `names` of speakers are by label, of all `labels`. */

const CHANNEL = "who-said-what";
const SNIPPET = 40; // characters on each side of what is found

export class Records {
  #entries = new Map();
  #texts = null; // by id: a text, and the same in plain letters
  #channel = new BroadcastChannel(CHANNEL);

  /** `onChange(id, isElsewhere)`: an entry was added, changed or removed, here or in another tab. */
  constructor(onChange) {
    this.onChange = onChange;
    this.#channel.onmessage = async ({ data: id }) => {
      this.#texts = null;
      await this.fresh(id);
      this.onChange(id, true);
    };
  }

  async load() {
    for (const entry of await database.readAll("entries")) this.#entries.set(entry.id, entry);
  }

  /** Entries, the newest first. */
  get list() {
    return [...this.#entries.values()].sort((one, other) => other.created - one.created);
  }

  get = (id) => this.#entries.get(id);

  /** An entry as the browser has stored it: another tab may just have changed it. */
  async fresh(id) {
    const entry = await database.read("entries", id);
    if (entry) this.#entries.set(id, entry);
    else this.#entries.delete(id);
    return entry;
  }

  /** Add a record, and its files unless they are stored already. Returns its entry. */
  async add(about, files) {
    const entry = { version: 1, created: Date.now(), names: {}, diarizes: false, ...about };
    entry.id ??= database.newId();
    const puts = files.map((file) => ["recordings", { id: database.newId(), file }]);
    entry.recordings ??= puts.map(([, { id }]) => id);
    await this.#put(entry, puts);
    return entry;
  }

  /** Change an entry, but neither its transcript nor its version. */
  change(id, changes, puts = [], deletes = []) {
    return database.exclusively(`entry ${id}`, async () => {
      const entry = await this.fresh(id);
      if (entry) await this.#put({ ...entry, ...changes }, puts, deletes);
    });
  }

  /** Store an answer in the place of the one before. */
  async finish(id, answer, changes) {
    const { duration } = answer;
    const puts = answerPuts(id, answer);
    const answerBytes = puts[0][1].json.length;
    const version = (this.get(id)?.version ?? 0) + 1;
    const about = { labels: labelsOf(answer), duration, answerBytes, version };
    await this.change(id, { ...about, ...changes }, puts);
  }

  /**
   * Store a corrected answer. Returns its entry: another one if another tab has changed the record
   * since it was opened or corrected last here, because both are kept. `isLeft`: no time to look.
   */
  async correct(record, answer, names, isLeft) {
    const { answer: _, ...before } = record;
    const version = record.version + 1;
    const entry = { ...before, ...this.get(record.id), names, labels: labelsOf(answer), version };
    const expected = isLeft ? undefined : { id: record.id, version: record.version };
    if (await this.#put(entry, answerPuts(entry.id, answer), [], expected)) return entry;
    const copy = { ...entry, id: database.newId(), version: 1, created: Date.now() };
    await this.#put(copy, answerPuts(copy.id, answer));
    return copy;
  }

  async read(id) {
    const [entry, stored] = await Promise.all([this.fresh(id), database.read("answers", id)]);
    return entry && stored ? { ...entry, answer: JSON.parse(stored.json) } : null;
  }

  /** The files of a record; empty if the browser has lost one. */
  async filesOf({ recordings }) {
    const stored = await Promise.all(recordings.map((key) => database.read("recordings", key)));
    return stored.every(Boolean) ? stored.map(({ file }) => file) : [];
  }

  /** Store a file that the browser has lost. */
  async giveFile(id, file) {
    const key = database.newId();
    await this.change(id, { recordings: [key] }, [["recordings", { id: key, file }]]);
  }

  /** Delete records, and files that no other record has. */
  async remove(ids) {
    const gone = ids.map(this.get).filter(Boolean);
    for (const id of ids) this.#entries.delete(id);
    const used = new Set(this.list.flatMap(({ recordings }) => recordings));
    const unused = gone.flatMap(({ recordings }) => recordings).filter((key) => !used.has(key));
    const deletes = ["entries", "answers", "texts"].flatMap((store) => ids.map((id) => [store, id]));
    deletes.push(...ids.map(allPieces), ...unused.map((key) => ["recordings", key]));
    await database.write([], deletes);
    await database.retry();
    // Pieces stay while the browser has no room for their whole recording.
    const ended = this.list.filter(({ state }) => state !== "recording");
    await database.write([], ended.map(({ id }) => allPieces(id)));
    for (const id of ids) this.#tell(id);
  }

  /** Bytes of records; a file of several is counted once. */
  bytesOf(entries) {
    const files = new Map(entries.map((entry) => [String(entry.recordings), entry.bytes]));
    const answers = entries.map(({ answerBytes = 0 }) => answerBytes);
    return [...files.values(), ...answers].reduce((sum, bytes) => sum + bytes, 0);
  }

  /** Whether any part of a record is in this tab's memory alone. */
  isUnsaved({ id, recordings }) {
    const own = ["entries", "answers"].some((store) => database.isUnsaved(store, id));
    return own || recordings.some((key) => database.isUnsaved("recordings", key));
  }

  /** Records whose names or words contain all words of a query: the text around the first, by id. */
  async search(query) {
    const wanted = wordsOf(query);
    if (!this.#texts) {
      const stored = await database.readAll("texts");
      const texts = stored.map(({ id, text }) => [id, text.normalize()]);
      this.#texts = new Map(texts.map(([id, text]) => [id, [text, plain(text)]]));
    }
    const found = new Map();
    for (const { id, file, names } of this.list) {
      const [text, words] = this.#texts.get(id) ?? ["", ""];
      const about = plain([file, ...Object.values(names)].join(" ").normalize());
      if (!wanted.every((word) => about.includes(word) || words.includes(word))) continue;
      const at = wanted.map((word) => words.indexOf(word)).find((place) => place >= 0);
      found.set(id, at === undefined ? "" : around(text, at));
    }
    return found;
  }

  // Recordings that the microphone is making.

  /** Store the whole recording in the place of its pieces. Returns whether it has any. */
  async endRecording(id, changes = {}) {
    const parts = await partsOf(id);
    const entry = this.get(id);
    if (!parts.length || !entry) return false;
    const recording = { id: database.newId(), file: wavFile(entry.file, parts, entry.rate) };
    const state = entry.answerBytes ? "done" : "kept";
    const made = { recordings: [recording.id], bytes: recording.file.size, state, ...changes };
    await this.change(id, made, [["recordings", recording]], [allPieces(id)]);
    return true;
  }

  /** Returns whether it was written, in the browser or in memory. */
  async #put(entry, puts = [], deletes = [], expected = undefined) {
    const written = await database.write([["entries", entry], ...puts], deletes, expected);
    if (written === "changed") return false;
    this.#entries.set(entry.id, entry);
    if (puts.some(([store]) => store === "texts")) this.#texts = null;
    this.#tell(entry.id);
    return true;
  }

  #tell(id) {
    this.#channel.postMessage(id);
    this.onChange(id, false);
  }
}

const allPieces = (id) => ["pieces", IDBKeyRange.bound([id, 0], [id, Infinity])];

/** The pieces of a recording in order, joined to parts. */
async function partsOf(id, together = 600) {
  const parts = [];
  for (let first = 0; ; first += together) {
    const range = IDBKeyRange.bound([id, first], [id, first + together], false, true);
    const pieces = await database.readAll("pieces", range);
    if (!pieces.length) return parts;
    pieces.sort((one, other) => one.number - other.number);
    parts.push(new Blob(pieces.map(({ samples }) => samples)));
  }
}

/** In the order in which they first speak. */
const labelsOf = ({ speakers }) => [
  ...new Set(speakers.map(({ speaker }) => speaker).filter((label) => label !== null)),
];

/** The answer as JSON, which is stored and read in less time than its objects. */
const answerPuts = (id, answer) => [
  ["answers", { id, json: JSON.stringify(answer) }],
  ["texts", { id, text: answer.text.trim() }],
];

/** In small letters, without accents and with spaces alone; as long as before. */
export const plain = (text) =>
  text.replace(/[^\0-\x7f]/gu, withoutAccent).toLowerCase().replace(/\s/g, " ");

/** A letter without its accent. Letters with parts that are no accents, as in Korean, stay as they are. */
function withoutAccent(letter) {
  const base = letter.normalize("NFD").replace(/\p{M}/gu, "");
  return base.length === letter.length ? base : letter;
}

/** The words of a query, as they are searched for. */
export const wordsOf = (query) => plain(query.normalize()).split(" ").filter(Boolean);

function around(text, at) {
  const start = text.lastIndexOf(" ", Math.max(0, at - SNIPPET)) + 1;
  const end = text.indexOf(" ", at + SNIPPET);
  return text.slice(start, end < 0 ? undefined : end);
}
