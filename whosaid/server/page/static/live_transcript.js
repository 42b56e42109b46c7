/* The transcript of a recording from live sessions. */

import { clock } from "./format.js";
import { MAX_PAUSE } from "./manuscript.js";

const ROUNDING = 0.02; // seconds by which two times of the same moment differ, at most

/** Applies an event to its item, by the last part of the event's type. */
const CHANGES = {
  speech_started: (item, event) => (item.start = event.audio_start_ms / 1000),
  words: (item, event) => item.grow(event.words, event.unstable),
  segment: (item, event) => item.hearSegment(event),
  completed: (item, event) => item.complete(event),
  failed: (item, event) => item.fail(event.error.message),
};

class Item {
  words = []; // final ones
  unstable = ""; // a guess of what follows them
  segments = [];
  isComplete = false;
  isOver = false; // nothing more is said of its text
  hasLastSegments = false;
  hasVoices = false; // the words are those of segments, which may overlap
  language = "";
  warnings = [];

  constructor(start) {
    this.start = start; // seconds
  }

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
      this.words = [{ word: transcript, start: this.start, end, probability: null, speaker: null }];
    }
  }

  /** The server could not complete the item: final words stay. */
  fail(reason) {
    this.breakOff();
    this.warnings.push(`From ${clock(this.start)} on: ${reason}`);
  }

  /** Nothing more comes: final words stay. Returns whether anything is left. */
  breakOff() {
    [this.unstable, this.isOver] = ["", true];
    return this.words.length > 0 || this.warnings.length > 0;
  }

  /** Segments of the final text replace all before, and its words if speakers talk at once. */
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

  /** The word's own speaker, or that of the final segments once they come; null while unknown. */
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

  /** The text as in an answer: a block for each change of speaker, if speakers are told apart. */
  blocks(isTold) {
    const blocks = [];
    for (const each of this.words) {
      const speaker = isTold ? this.speakerOf(each) : undefined;
      if (!blocks.length || blocks.at(-1).speaker !== speaker)
        blocks.push({ ...(isTold && { speaker }), text: "", timestamp: [each.start], words: [] });
      const block = blocks.at(-1);
      const { word, start, end, probability, heard } = each;
      block.text += word;
      block.timestamp[1] = end;
      const about = { ...(isTold && { speaker, overlap: false }), ...(heard && { heard }) };
      block.words.push({ word, timestamp: [start, end], probability, ...about });
    }
    return blocks;
  }
}

export class LiveTranscript {
  #items = new Map(); // by name, in the order in which they were spoken
  labels = []; // of speakers, in the order in which they became known
  #warnings = []; // of the sessions
  #start = 0; // of the session, in seconds

  /** Apply a server event; return the name of the item that it changes, "" if there is none. */
  hear(event) {
    if (event.type === "session.speakers") this.#warnings.push(...(event.warnings ?? []));
    const change = CHANGES[event.type.split(".").at(-1)];
    if (!change) return "";
    const id = event.item_id;
    if (!this.#items.has(id)) this.#items.set(id, new Item(event.words?.[0]?.start ?? 0));
    change(this.#items.get(id), event);
    for (const { speaker } of [event, ...(event.words ?? [])])
      if (speaker && !this.labels.includes(speaker)) this.labels.push(speaker);
    return id;
  }

  /** The start in seconds of the first item whose text may still grow; null without one. */
  get openSince() {
    return [...this.#items.values()].find(({ isOver }) => !isOver)?.start ?? null;
  }

  /** The session was lost until second `start`: final words stay. Returns the items that are empty. */
  breakOff(start) {
    const items = [...this.#items.values()];
    const last = items.find(({ isOver }) => !isOver) ?? items.at(-1);
    const from = Math.max(this.#start, last?.writtenUntil ?? 0);
    this.#start = start;
    if (start > from)
      this.#warnings.push(
        `From ${clock(from)} to ${clock(start)} words may be missing: there was no live session.` +
          " Transcribe writes the whole recording.",
      );
    const gone = [...this.#items].filter(([, item]) => !item.breakOff()).map(([id]) => id);
    for (const id of gone) this.#items.delete(id);
    return gone;
  }

  /** An item's text so far; its last block has the guess as `unstable`. */
  blocksOf(id) {
    const item = this.#items.get(id);
    const blocks = item.blocks(this.labels.length > 0);
    if (!blocks.length && item.unstable) blocks.push({ text: "", timestamp: [item.start] });
    if (blocks.length) blocks.at(-1).unstable = item.unstable;
    return blocks;
  }

  get ids() {
    return [...this.#items.keys()];
  }

  /** The whole transcript of so many seconds, as an answer of the server. */
  answer(seconds) {
    const duration = Number(seconds.toFixed(2));
    const items = [...this.#items.values()].filter(({ words }) => words.length);
    const isTold = this.labels.length > 0;
    const alone = items.filter(({ hasVoices }) => !hasVoices);
    putInOrder(alone.flatMap(({ words }) => words), duration);
    const blocks = items.flatMap((item) => item.blocks(isTold));
    const unknown = { avg_logprob: null, no_speech_prob: null };
    const chunks = blocks.map(({ text, timestamp }) => ({ text, timestamp: [...timestamp], ...unknown }));
    const words = blocks.flatMap((block) => block.words);
    words.sort((one, other) => one.timestamp[0] - other.timestamp[0]); // speakers may overlap
    const speakers = isTold ? joined(blocks) : [];
    inOrder([...speakers, ...words]);
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
}

const textOf = (words) => words.map(({ word }) => word).join("");

/** Turns of one speaker after another, without a long pause, as one turn. */
function joined(turns) {
  const made = [];
  for (const turn of turns) {
    const last = made.at(-1);
    if (last?.speaker !== turn.speaker || turn.timestamp[0] - last.timestamp[1] > MAX_PAUSE) {
      made.push(turn);
      continue;
    }
    last.text += turn.text;
    last.timestamp[1] = turn.timestamp[1];
    last.words.push(...turn.words);
  }
  return made;
}

/** Number the speakers in the order in which they first appear. */
function inOrder(said) {
  const labels = said.map(({ speaker }) => speaker).filter((label) => /^SPEAKER_\d+$/.test(label));
  const appeared = [...new Set(labels)];
  const sorted = appeared.toSorted();
  for (const each of said) {
    const place = appeared.indexOf(each.speaker);
    if (place >= 0) each.speaker = sorted[place];
  }
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
  const counts = Object.entries(Object.groupBy(values.filter(Boolean), (value) => value));
  return counts.sort(([, one], [, other]) => other.length - one.length)[0]?.[0] ?? null;
}
