/* A transcript as files (those of the server, `output`), with the names that speakers have here. */

import { blocksOf } from "./blocks.js";
import { cuesOf, inMilliseconds, onOneLine } from "./subtitles.js";

/** @typedef {import("./speakers.js").Speakers} Speakers */
/** @typedef {{answer: any, words: any[], blocks: any[]}} Named what has speakers' names in it */

// SubRip has no escapes (answer/subtitles.py).
const LOOKALIKES = { "<": "\u2039", ">": "\u203a", "{": "(", "}": ")", "\\": "\u2216" };
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
// What spreadsheets compute.
const FORMULA = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/;

/** @type {Record<string, (named: Named, speakers: Speakers) => string>} */
const FORMATS = {
  json: ({ answer, blocks, words }) => {
    const { output, ...rest } = answer;
    const speakers = answer.speakers.length ? blocks : [];
    return `${JSON.stringify({ ...rest, speakers, words }, null, 2)}\n`;
  },
  srt: (named) =>
    cuesOf(timed(named.blocks), true, named.answer.duration)
      .map(({ lines, start, end }, place) => {
        const text = replaceAll(lines.join("\n"), LOOKALIKES);
        return `${place + 1}\n${clock(start, ",")} --> ${clock(end, ",")}\n${text}\n`;
      })
      .join("\n"),
  vtt: (named) =>
    [
      "WEBVTT\n",
      ...cuesOf(timed(named.blocks), false, named.answer.duration).map(
        ({ speaker, lines, start, end }) => {
          const voice = speaker ? `<v ${replaceAll(speaker, ENTITIES)}>` : "";
          const text = replaceAll(lines.join("\n"), ENTITIES);
          return `${clock(start, ".")} --> ${clock(end, ".")}\n${voice}${text}\n`;
        },
      ),
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
  rttm: ({ answer }, speakers) =>
    (answer.output?.rttm ?? "")
      .split("\n")
      .map((line) => {
        const fields = line.split(" ");
        if (fields.length > 7) fields[7] = asField(speakers.nameOf(fields[7]));
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
 */
export function fileText(format, answer, speakers) {
  const renamed = (item) =>
    item.speaker ? { ...item, speaker: speakers.nameOf(item.speaker) } : item;
  const blocks = blocksOf(answer).map((block) => ({
    ...renamed(block),
    words: block.words.map(renamed),
  }));
  return FORMATS[format]({ answer, blocks, words: answer.words.map(renamed) }, speakers);
}

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

/** Hours, minutes, seconds, and milliseconds after `separator`. */
function clock(seconds, separator) {
  const whole = inMilliseconds(seconds);
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

/** A field of RTTM, which ends at a space. */
const asField = (name) => name.trim().replace(/\s+/g, "_");

const replaceAll = (text, table) =>
  text.replace(/[<>{}\\&]/g, (character) => table[character] ?? character);
