/* A transcript as files (those of the server, `output`), with the names that speakers have here. */

import { blocksOf } from "./blocks.js";
import { asField } from "./speakers.js";
import { cuesOf, inMilliseconds, onOneLine, prefix } from "./subtitles.js";

/** @typedef {import("./speakers.js").Speakers} Speakers */
/** @typedef {import("./subtitles.js").Layout} Layout */
/**
 * @typedef {{answer: any, words: any[], blocks: any[], layout: Layout}} Named what has speakers'
 *   names in it
 */

// SubRip has no escapes (answer/subtitles.py).
const LOOKALIKES = { "<": "\u2039", ">": "\u203a", "{": "(", "}": ")", "\\": "\u2216" };
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
// What spreadsheets compute.
const FORMULA = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/;

/** @type {Record<string, (named: Named, speakers: Speakers, recording: string) => string>} */
const FORMATS = {
  json: ({ answer, blocks, words }) => {
    const { output, ...rest } = answer;
    const speakers = answer.speakers.length ? blocks : [];
    return `${JSON.stringify({ ...rest, speakers, words }, null, 2)}\n`;
  },
  srt: (named) =>
    shown(named, true, LOOKALIKES)
      .map(({ text, start, end }, place) => {
        return `${place + 1}\n${clock(start, ",")} --> ${clock(end, ",")}\n${text}\n`;
      })
      .join("\n"),
  vtt: (named) =>
    [
      "WEBVTT\n",
      ...shown(named, false, ENTITIES).map(({ speaker, text, start, end }) => {
        const voice = speaker ? `<v ${replaceAll(speaker, ENTITIES)}>` : "";
        return `${clock(start, ".")} --> ${clock(end, ".")}\n${voice}${text}\n`;
      }),
    ].join("\n"),
  txt: ({ blocks }) =>
    blocks
      .map(({ speaker, text }) => `${speaker ? `${speaker}: ` : ""}${onOneLine(text)}\n`)
      .join(""),
  tsv: ({ blocks }) =>
    [
      "start\tend\ttext\tspeaker\n",
      ...blocks.map(({ timestamp, text, speaker }) => {
        const fields = [...timestamp.map(inMilliseconds), cell(text), cell(speaker ?? "")];
        return `${fields.join("\t")}\n`;
      }),
    ].join(""),
  rttm: ({ answer }, speakers, recording) =>
    (answer.output?.rttm ?? "")
      .split("\n")
      .map((line) => {
        const fields = line.split(" ");
        if (fields.length < 8) return line;
        fields[1] = asField(recording);
        fields[7] = asField(speakers.nameOf(speakers.labelOf(fields[7])));
        return fields.join(" ");
      })
      .join("\n"),
};

/**
 * The formats that there are for an answer; RTTM only where speakers were told apart.
 * @param {any} answer
 */
export const formatsOf = (answer) =>
  Object.keys(FORMATS).filter((format) => format !== "rttm" || answer.output?.rttm);

/**
 * The text of a file.
 * @param {string} format
 * @param {any} answer
 * @param {Speakers} speakers
 * @param {Layout} [layout]
 * @param {string} [recording] its name in RTTM
 */
export function fileText(format, answer, speakers, layout = {}, recording = "audio") {
  const renamed = (item) =>
    item.speaker ? { ...item, speaker: speakers.nameOf(item.speaker) } : item;
  const blocks = blocksOf(answer, speakers).map((block) => ({
    ...renamed(block),
    words: block.words.map(renamed),
  }));
  const words = answer.words.map(renamed);
  return FORMATS[format]({ answer, blocks, words, layout }, speakers, recording);
}

/** Each text that is on the screen for a while, in milliseconds, and whose it is; by their starts. */
function shown(file, named, table) {
  const { layout } = file;
  const names = layout.subtitle_speakers ?? true;
  return cuesOfChannels(file, named && names)
    .flatMap((cue) => {
      const whole = { start: inMilliseconds(cue.start), end: inMilliseconds(cue.end) };
      return (layout.highlight_words ? moments(cue, whole) : [whole]).map((moment) => ({
        ...moment,
        speaker: names && cue.words[0][0].speaker,
        text: cueText(cue, moment.spoken, table),
      }));
    })
    .sort((before, after) => before.start - after.start);
}

/** When each word of a cue is spoken, and between them none. */
function moments(cue, whole) {
  const found = [];
  let now = whole.start;
  for (const word of cue.words.flat()) {
    const start = Math.min(Math.max(now, inMilliseconds(word.start)), whole.end);
    const end = Math.min(Math.max(start, inMilliseconds(word.end)), whole.end);
    if (start === end) continue;
    if (start > now) found.push({ start: now, end: start });
    found.push({ start, end, spoken: word });
    now = end;
  }
  if (now < whole.end || !found.length) found.push({ start: now, end: whole.end });
  return found;
}

/** The lines of a cue, in which the word that is `spoken` is underlined. */
const cueText = ({ words, named }, spoken, table) =>
  words
    .map((line, place) => {
      const said = line.map((word) => {
        const text = replaceAll(word.text, table);
        return word === spoken ? text.replace(/\S(.*\S)?/su, "<u>$&</u>") : text;
      });
      const name = replaceAll(prefix(line[0], named && place === 0), table);
      return name + onOneLine(said.join(""));
    })
    .join("\n");

/**
 * Turns in NIST's format (RTTM), as the server's answers have them.
 * @param {{speaker: string, start: number, end: number}[]} turns
 */
export const rttmOf = (turns) =>
  turns
    .map(({ speaker, start, end }) => {
      const times = `${start.toFixed(3)} ${(end - start).toFixed(3)}`;
      return `SPEAKER audio 1 ${times} <NA> <NA> ${asField(speaker)} <NA> <NA>\n`;
    })
    .join("");

/** The cues of each channel, which overlap where channels do, in order of their starts. */
function cuesOfChannels({ answer, blocks, layout }, isNamed) {
  const ofChannel = (list, each) => list.filter(({ channel }) => channel === each);
  const channels = [...new Set(blocks.map(({ channel }) => channel))];
  return channels
    .flatMap((each) => {
      const segments = ofChannel(answer.chunks, each).map(({ text }) => text);
      const words = timed(ofChannel(blocks, each));
      return cuesOf(words, isNamed, answer.duration, layout, segments);
    })
    .sort((before, after) => before.start - after.start);
}

/** All words; what has no times of words counts as one. */
const timed = (blocks) =>
  blocks.flatMap(({ words, ...block }) =>
    (words.length ? words : [block]).map(({ word, text, timestamp: [start, end], speaker }) => ({
      text: word ?? text,
      start,
      end,
      speaker: speaker ?? null,
    })),
  );

/** Hours, minutes, seconds and, after `separator`, milliseconds of so many. */
function clock(whole, separator) {
  const part = (unit, most) => String(Math.floor(whole / unit) % most).padStart(2, "0");
  const rest = String(whole % 1000).padStart(3, "0");
  const hours = part(3_600_000, Infinity);
  return `${hours}:${part(60_000, 60)}:${part(1000, 60)}${separator}${rest}`;
}

/** A field of a table: quoted where CSV's readers need it. */
function cell(text) {
  const line = onOneLine(text);
  const safe = FORMULA.test(line) ? `'${line}` : line;
  return safe.includes('"') ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const replaceAll = (text, table) =>
  text.replace(/[<>{}\\&]/g, (character) => table[character] ?? character);
