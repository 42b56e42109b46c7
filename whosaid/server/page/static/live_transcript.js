/* The transcript of a recording from live sessions. */

import { clock } from "./format.js";

/**
 * @typedef {{word: string, start: number, end: number, probability: number | null,
 *   speaker: string | null}} Word seconds of the session
 * @typedef {{text: string, speaker: string | null, start: number, end: number,
 *   words?: Word[]}} Segment which has words if speakers talk at once
 */

// Seconds by which two times of the same moment differ, at most.
const ROUNDING = 0.02;

/** Applies an event to its item, by the last part of the event's type. */
const CHANGES = {
  speech_started: (item, event) => (item.start = event.audio_start_ms / 1000),
  words: (item, event) => item.grow(event.words, event.unstable),
  segment: (item, event) => item.hearSegment(event),
  completed: (item, event) => item.complete(event),
  failed: (item, event) => item.fail(event.error.message),
};

/** A stretch of speech that becomes one text. */
class Item {
  /** @type {Word[]} final ones */
  words = [];
  /** A guess of what follows them. */
  unstable = "";
  /** @type {Segment[]} */
  segments = [];
  isComplete = false;
  isOver = false; // nothing more is said of its text
  hasLastSegments = false;
  hasVoices = false; // the words are those of segments, which may overlap
  language = "";
  /** @type {string[]} */
  warnings = [];

  /** @param {number} start seconds */
  constructor(start) {
    this.start = start;
  }

  /** The second up to which it is transcribed. */
  get writtenUntil() {
    return this.words.at(-1)?.end ?? this.start;
  }

  grow(words, unstable) {
    this.words.push(...words);
    this.unstable = unstable;
  }

  /** Take the final text; final words replace the words before. */
  complete({ words, transcript, languages, warnings, usage }) {
    this.unstable = "";
    this.isComplete = this.isOver = true;
    this.language = languages?.[0]?.code ?? "";
    this.warnings.push(...(warnings ?? []));
    if (words?.length) this.words = words;
    else if (!transcript.trim()) this.words = [];
    else if (textOf(this.words).trim() !== transcript.trim()) {
      const end = this.start + (usage?.seconds ?? 0);
      const whole = { word: transcript, start: this.start, end, probability: null, speaker: null };
      this.words = [whole];
    }
  }

  /** The server could not complete the item: final words stay. */
  fail(reason) {
    this.unstable = "";
    this.isOver = true;
    this.warnings.push(`From ${clock(this.start)} on: ${reason}`);
  }

  /** The session is lost: final words stay. Returns whether anything is left. */
  breakOff() {
    [this.unstable, this.isOver] = ["", true];
    return this.words.length > 0 || this.warnings.length > 0;
  }

  /** Those after the text is complete take the place of all before. */
  hearSegment(segment) {
    if (this.isComplete && !this.hasLastSegments) {
      this.segments = [];
      this.hasLastSegments = true;
      this.hasVoices = Boolean(segment.words);
      if (this.hasVoices) this.words = [];
    }
    if (this.hasVoices) this.words.push(...segment.words);
    this.segments.push(segment);
  }

  /**
   * The speaker of a word, null while unknown: the word's own, or that of the final segments once
   * they come.
   */
  speakerOf(word) {
    if (this.hasVoices || (word.speaker && !this.hasLastSegments)) return word.speaker;
    const middle = (word.start + word.end) / 2;
    let [nearest, least] = [null, ROUNDING];
    for (const { speaker, start, end } of this.segments) {
      const distance = Math.max(start - middle, middle - end, 0);
      if (distance <= least) [nearest, least] = [speaker, distance];
    }
    return nearest;
  }
}

export class LiveTranscript {
  /** @type {Map<string, Item>} in the order in which they were spoken */
  #items = new Map();
  /** @type {Set<string>} */
  #labels = new Set();
  /** @type {string[]} of the sessions */
  #warnings = [];
  #start = 0; // of the session, in seconds

  /**
   * Apply a server event; return the name of the item that it changes, "" if there is none.
   */
  hear(event) {
    if (event.type === "session.speakers") this.#warnings.push(...(event.warnings ?? []));
    const change = CHANGES[event.type.split(".").at(-1)];
    if (!change) return "";
    const id = event.item_id;
    if (!this.#items.has(id)) this.#items.set(id, new Item(event.words?.[0]?.start ?? 0));
    change(this.#items.get(id), event);
    for (const { speaker } of [event, ...(event.words ?? [])])
      if (speaker) this.#labels.add(speaker);
    return id;
  }

  /** The start in seconds of the first item whose text may still grow; null without one. */
  get openSince() {
    return [...this.#items.values()].find(({ isOver }) => !isOver)?.start ?? null;
  }

  /**
   * The session was lost: final words stay, and a warning tells of the gap behind them. Returns the
   * names of items of which nothing is left.
   * @param {number} start seconds of the recording at which another session begins
   */
  breakOff(start) {
    const items = [...this.#items.values()];
    const last = items.find(({ isOver }) => !isOver) ?? items.at(-1);
    const from = Math.max(this.#start, last?.writtenUntil ?? 0);
    this.#start = start;
    if (start > from)
      this.#warnings.push(
        `From ${clock(from)} to ${clock(start)} words may be missing: there was no live session.` +
          " Transcribe hears the whole recording.",
      );
    const gone = [...this.#items].filter(([, item]) => !item.breakOff()).map(([id]) => id);
    for (const id of gone) this.#items.delete(id);
    return gone;
  }

  /** Whether anything was said. */
  get isEmpty() {
    return !this.#spoken.length;
  }

  /**
   * An item's text so far: a block for each change of speaker, as in an answer; the last one has
   * the guess as `unstable`.
   */
  blocksOf(id) {
    const item = this.#items.get(id);
    const blocks = this.#blocks(item, this.#hasSpeakers);
    if (!blocks.length && item.unstable) blocks.push({ text: "", timestamp: [item.start] });
    const last = blocks.length - 1;
    return blocks.map((block, place) => ({
      ...block,
      unstable: place === last ? item.unstable : "",
    }));
  }

  /** Labels of speakers, in the order in which they became known. */
  get labels() {
    return [...this.#labels];
  }

  /** The items' names. */
  get ids() {
    return [...this.#items.keys()];
  }

  /**
   * The whole transcript, as an answer of the server.
   * @param {number} seconds that it lasts
   */
  answer(seconds) {
    const duration = Number(seconds.toFixed(2));
    const items = this.#spoken;
    const known = this.#hasSpeakers;
    const alone = items.filter(({ hasVoices }) => !hasVoices);
    putInOrder(alone.flatMap(({ words }) => words), duration);
    const chunks = items.map(({ words }) => ({
      text: textOf(words),
      timestamp: [words[0].start, Math.max(...words.map(({ end }) => end))],
      avg_logprob: null,
      no_speech_prob: null,
    }));
    const speakers = known ? items.flatMap((item) => this.#blocks(item, known)) : [];
    const words = items.flatMap((item) => item.words.map((word) => wordJson(item, word, known)));
    words.sort((one, other) => one.timestamp[0] - other.timestamp[0]); // speakers may overlap
    const ofItems = [...this.#items.values()].flatMap((item) => item.warnings);
    return {
      speakers,
      chunks,
      text: chunks.map(({ text }) => text).join(""),
      language: mostOf(items.map(({ language }) => language)),
      language_probability: null,
      duration,
      warnings: [...new Set([...ofItems, ...this.#warnings])],
      words,
    };
  }

  get #spoken() {
    return [...this.#items.values()].filter(({ words }) => words.length);
  }

  get #hasSpeakers() {
    return this.#labels.size > 0;
  }

  #blocks(item, known) {
    const blocks = [];
    for (const word of item.words) {
      const speaker = known ? item.speakerOf(word) : undefined;
      if (!blocks.length || blocks.at(-1).speaker !== speaker) blocks.push({ speaker, words: [] });
      blocks.at(-1).words.push(word);
    }
    return blocks.map(({ speaker, words }) => ({
      ...(known && { speaker }),
      text: textOf(words),
      timestamp: [words[0].start, words.at(-1).end],
      ...(known && { words: words.map((word) => wordJson(item, word, known)) }),
    }));
  }
}

const textOf = (words) => words.map(({ word }) => word).join("");

/** A word as in an answer. */
function wordJson(item, word, known) {
  const { word: text, start, end, probability } = word;
  const made = { word: text, timestamp: [start, end], probability };
  return known ? { ...made, speaker: item.speakerOf(word), overlap: false } : made;
}

/** Let no word begin before the end of the one before it, or end after the recording. */
function putInOrder(words, duration) {
  let now = 0;
  for (const word of words) {
    word.start = Math.min(Math.max(now, word.start), duration);
    now = word.end = Math.min(Math.max(word.start, word.end), duration);
  }
}

/** The most frequent value; null without values. */
function mostOf(values) {
  const counts = new Map();
  for (const value of values.filter(Boolean)) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort(([, a], [, b]) => b - a)[0]?.[0] ?? null;
}
