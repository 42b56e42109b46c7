/* The document that is edited: an answer's turns, as text in which every word carries its entry.

   A word is the text between two spaces. Its times are those of the entries whose letters it has:
   parts of one entry share its time by their letters, and text without an entry has the time that
   its neighbours leave. So no edit has to move times.

   Words have their `text` with the space before it; `from` and `to`, the places of their letters in the
   turn; `start` and `end` in seconds; the answer's `entry` as far as it holds; and `parts` of entries. */

import { Schema } from "./vendor/prosemirror.js";

export const MAX_PAUSE = 2; // seconds; a longer one ends a stretch, as on the server
const DOUBT = 0.5; // words less probable than this are marked
const SHORTEST = 0.02; // seconds of a word, as on the server
// Scripts that separate no words by spaces.
const UNSPACED =
  /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]\p{P}*$/u;

export const isDoubtful = ({ probability }) => probability !== null && probability < DOUBT;

export const schema = new Schema({
  nodes: {
    // The user's names of speakers, and whether words have changed their speakers.
    doc: { content: "turn+", attrs: { names: { default: {} }, isMoved: { default: false } } },
    turn: {
      content: "text*",
      // `rest` has what else the answer says of the turn: channel, language, ...
      attrs: { speaker: { default: null }, start: { default: 0 }, end: { default: 0 }, rest: { default: {} } },
      whitespace: "pre",
      toDOM: () => ["p", 0],
    },
    text: {},
  },
  marks: {
    word: {
      attrs: { entry: {} },
      toDOM: ({ attrs: { entry } }) => [
        "span",
        {
          class: `word${isDoubtful(entry) ? " doubtful" : ""}${entry.overlap ? " overlap" : ""}`,
          ...(entry.overlap && { title: "Spoken while another voice is heard" }),
        },
      ],
    },
  },
});

const bare = (text) => text.replace(/\s+/g, "");
/** Whether no space separates a word from the one before it. */
const isGlued = (entry) => !/^\s/.test(entry.word);
const round = (seconds) => Math.round(seconds * 100) / 100;

const unedited = new WeakMap(); // the entries of turns that were not edited
const known = new WeakMap(); // words of turns

/** The speakers' segments or, without speakers, the chunks. */
export const turnsOf = ({ speakers, chunks, words = [] }) =>
  speakers.length
    ? speakers.map((turn) => ({ ...turn, words: turn.words ?? [] }))
    : withWords(chunks, words);

/** Chunks with their words, of which an answer without speakers has one list: by their letters. */
function withWords(chunks, words) {
  let next = 0;
  return chunks.map((chunk) => {
    const letters = bare(chunk.text);
    let [stop, read] = [next, ""];
    while (stop < words.length && letters.startsWith(read + bare(words[stop].word))) {
      read += bare(words[stop].word);
      stop += 1;
    }
    // A text whose words have no times has no words.
    if (read !== letters) stop = next;
    const made = { ...chunk, words: words.slice(next, stop) };
    next = stop;
    return made;
  });
}

/** The document of an answer, with the user's names of speakers. */
export function manuscriptOf(answer, names = {}) {
  const turns = turnsOf(answer).map((block) => {
    const { speaker = null, text, timestamp, words, ...rest } = block;
    const attrs = { speaker, start: timestamp[0], end: timestamp[1], rest };
    const turn = schema.node("turn", attrs, words.length ? textOf(words) : plain(text));
    unedited.set(turn, block);
    return turn;
  });
  const empty = { start: 0, end: answer.duration };
  return schema.node("doc", { names }, turns.length ? turns : [schema.node("turn", empty)]);
}

const plain = (text) => (text.trim() ? [schema.text(text.trim().replace(/\s+/g, " "))] : []);

/** Words as text; spaces carry no entry, so that a line may break there. */
function textOf(words) {
  const nodes = [];
  let space = "";
  for (const entry of words) {
    const text = entry.word.trim().replace(/\s+/g, " ");
    if (!isGlued(entry)) space = " ";
    if (!text) continue;
    if (space && nodes.length) nodes.push(schema.text(" "));
    nodes.push(schema.text(text, [schema.mark("word", { entry })]));
    space = /\s$/.test(entry.word) ? " " : "";
  }
  return nodes;
}

/** The words of a turn, in order. */
export function wordsOf(turn) {
  if (!known.has(turn)) known.set(turn, timed(turn, written(turn)));
  return known.get(turn);
}

/** The words of a turn and the parts of entries in each, without times. */
function written(turn) {
  const words = [];
  let [open, space] = [null, ""];
  turn.forEach((node, offset) => {
    const entry = node.marks[0]?.attrs.entry ?? null;
    for (const { 0: piece, index } of node.text.matchAll(/\s+|\S+/g)) {
      const from = offset + index;
      if (/^\s/.test(piece)) [open, space] = [null, piece];
      else {
        const last = open?.parts.at(-1)?.entry;
        if (!open || (entry && isGlued(entry) && last !== entry)) {
          open = { text: "", space, from, to: from, parts: [] };
          words.push(open);
          space = "";
        }
        open.text += piece;
        open.to = from + piece.length;
        if (entry) open.parts.push({ entry, letters: piece.length });
      }
    }
  });
  return words;
}

function timed({ attrs }, words) {
  const letters = new Map(); // of each entry
  for (const { parts } of words)
    for (const part of parts) letters.set(part.entry, (letters.get(part.entry) ?? 0) + part.letters);
  const read = new Map();
  for (const word of words) {
    for (const { entry, letters: own } of word.parts) {
      const [start, end] = entry.timestamp;
      const before = read.get(entry) ?? 0;
      const second = (count) => start + ((end - start) * count) / letters.get(entry);
      word.start = Math.min(word.start ?? Infinity, second(before));
      word.end = Math.max(word.end ?? 0, second(before + own));
      read.set(entry, before + own);
    }
  }
  for (let i = 0; i < words.length; i++) if (words[i].start === undefined) fill(words, i, attrs);
  let now = 0;
  return words.map((word, i) => {
    const start = Math.max(now, word.start);
    now = Math.max(start, word.end);
    const lead = i ? word.space : word.parts.length && isGlued(word.parts[0].entry) ? "" : " ";
    return { ...word, start, end: now, ...entryOf(word, lead, start, now) };
  });
}

/** Time the words from `first` on that have no entry; without a gap, a neighbour shares its time. */
function fill(words, first, attrs) {
  let stop = first;
  while (stop < words.length && !words[stop].parts.length) stop++;
  let from = first;
  let start = words[first - 1]?.end ?? attrs.start;
  let end = Math.max(start, words[stop]?.start ?? attrs.end);
  if (end - start < SHORTEST * (stop - first)) {
    if (first) start = words[--from].start;
    else if (stop < words.length) end = words[stop++].end;
  }
  const given = words.slice(from, stop);
  const all = given.reduce((sum, { text }) => sum + text.length, 0);
  let done = 0;
  for (const word of given) {
    word.start = start + ((end - start) * done) / all;
    done += word.text.length;
    word.end = start + ((end - start) * done) / all;
  }
}

/** What the answer says of a word: of one that was corrected, no probability. */
function entryOf({ text, parts }, lead, start, end) {
  const written = (lead && " ") + text;
  const [{ entry = {} } = {}] = parts;
  const isSame = parts.length === 1 && bare(entry.word) === bare(text);
  const { word, probability, speaker, ...rest } = entry;
  return {
    text: written,
    entry: {
      ...rest,
      word: isSame && isGlued(entry) === !lead ? word : written,
      timestamp: [round(start), round(end)],
      probability: isSame ? probability : null,
    },
  };
}

function blockOf(turn, hasSpeakers) {
  const before = unedited.get(turn);
  if (before && hasSpeakers === "speaker" in before) return before;
  const speaker = hasSpeakers ? { speaker: turn.attrs.speaker } : {};
  const { avg_logprob, no_speech_prob, ...common } = turn.attrs.rest;
  const words = wordsOf(turn).map(({ entry }) => ({
    ...entry,
    ...speaker,
    ...(hasSpeakers && { overlap: entry.overlap ?? false }),
    ...("channel" in turn.attrs.rest && { channel: turn.attrs.rest.channel }),
  }));
  const timestamp = [words[0].timestamp[0], words.at(-1).timestamp[1]];
  const block = {
    ...speaker,
    text: words.map(({ word }) => word).join(""),
    timestamp,
    ...(hasSpeakers ? common : turn.attrs.rest),
    words,
  };
  unedited.set(turn, block);
  return block;
}

export const hasSpeakers = (manuscript, answer) =>
  answer.speakers.length > 0 || manuscript.content.content.some(({ attrs }) => attrs.speaker);

/**
 * The answer with the text and the speakers of a document. Its files are those of the server only
 * as far as they still hold: the turns of voices, if no word has changed its speaker.
 */
export function corrected(answer, manuscript) {
  const told = hasSpeakers(manuscript, answer);
  const byStart = (one, other) => one.timestamp[0] - other.timestamp[0];
  const turns = manuscript.content.content.filter((turn) => turn.textContent.trim());
  const blocks = turns.map((turn) => blockOf(turn, told)).sort(byStart);
  const { output, ...rest } = answer;
  const words = blocks.flatMap((block) => block.words).sort(byStart);
  const chunks = blocks.map(({ words: _, speaker: __, ...block }) => block);
  return {
    ...rest,
    speakers: told ? blocks : [],
    chunks,
    text: chunks.map(({ text }) => text).join(""),
    words,
    ...(answer.unspoken && { unspoken: answer.unspoken.map(placedIn(words)) }),
    ...(output?.rttm && !manuscript.attrs.isMoved && { output: { rttm: output.rttm } }),
  };
}

const placedIn = (words) => (part) => ({
  ...part,
  words_before: words.filter(({ timestamp }) => timestamp[1] <= part.timestamp[0]).length,
});

const remade = (turn, content, attrs = {}) =>
  turn.type.create({ ...turn.attrs, ...attrs }, content);

/** The content between two offsets, without spaces at its ends. */
function trimmed(turn, from, to) {
  const text = turn.textBetween(from, to);
  const start = from + text.length - text.trimStart().length;
  return turn.content.cut(start, Math.max(start, from + text.trimEnd().length));
}

/** A turn as two, cut at an offset; the halves of a word share its time. */
export function cut(turn, offset) {
  const words = wordsOf(turn);
  const next = words.find(({ to }) => to > offset);
  const at = next
    ? next.from >= offset
      ? next.start
      : next.start + ((next.end - next.start) * (offset - next.from)) / (next.to - next.from)
    : (words.at(-1)?.end ?? turn.attrs.start);
  const before = words.findLast(({ to }) => to <= offset);
  const end = next && next.from < offset ? at : (before?.end ?? at);
  return [
    remade(turn, within(trimmed(turn, 0, offset), -Infinity, end), { end }),
    remade(turn, within(trimmed(turn, offset, turn.content.size), at, Infinity), { start: at }),
  ];
}

/** Content whose entries have no time outside of these seconds. */
function within(content, start, end) {
  const marks = new Map();
  return content.content.map((node) => {
    const entry = node.marks[0]?.attrs.entry;
    if (!entry || (entry.timestamp[0] >= start && entry.timestamp[1] <= end)) return node;
    if (!marks.has(entry)) {
      const timestamp = entry.timestamp.map((time) => Math.min(Math.max(time, start), end));
      marks.set(entry, [schema.mark("word", { entry: { ...entry, timestamp } })]);
    }
    return node.mark(marks.get(entry));
  });
}

/** Two turns as one, with the first's speaker. */
export function joined(one, other) {
  const first = other.firstChild?.marks[0]?.attrs.entry;
  const isTight = (!first || isGlued(first)) && UNSPACED.test(one.textContent);
  const space = isTight || !one.content.size || !other.content.size ? [] : [schema.text(" ")];
  const content = [...one.content.content, ...space, ...other.content.content];
  return remade(one, content, { end: Math.max(one.attrs.end, other.attrs.end) });
}

/** Whether a turn goes on as another. */
export const isOneStretch = (one, other) =>
  one.attrs.speaker === other.attrs.speaker &&
  one.attrs.rest.channel === other.attrs.rest.channel &&
  one.attrs.rest.language === other.attrs.rest.language &&
  other.attrs.start - one.attrs.end <= MAX_PAUSE;

export const spokenBy = (turn, speaker) => remade(turn, turn.content, { speaker });
