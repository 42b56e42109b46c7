/* Files of a transcript: the server's (`output`), with the page's names. */

import { blocksOf } from "./blocks.js";
import { element } from "./dom.js";
import { asField } from "./speakers.js";

/** @typedef {import("./speakers.js").Speakers} Speakers */

const MEDIA_TYPES = {
  json: "application/json",
  srt: "application/x-subrip",
  vtt: "text/vtt",
  txt: "text/plain",
  tsv: "text/tab-separated-values",
  rttm: "text/plain",
};
// The server's rules for names (answer/subtitles.py): SubRip has no escapes, VTT has entities, and
// spreadsheets compute cells that begin with these characters.
const LOOKALIKES = { "<": "\u2039", ">": "\u203a", "{": "(", "}": ")", "\\": "\u2216" };
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const FORMULA = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/;

/**
 * Rename speakers in a line of the server's file; `before` is the line above.
 * @type {Record<string, (line: string, speakers: Speakers, before: string, recording: string) =>
 *   string>}
 */
const WITH_NAMES = {
  srt: (line, speakers, before) => {
    if (!before.includes(" --> ")) return line;
    return renamed(line, speakers, (name) => `${escaped(name, LOOKALIKES)}: `);
  },
  vtt: (line, speakers) => renamed(line, speakers, (name) => `<v ${escaped(name, ENTITIES)}>`),
  tsv: (line, speakers) => {
    const end = line.lastIndexOf("\t") + 1;
    const label = speakers.labels.find((each) => cell(each) === line.slice(end));
    return label ? line.slice(0, end) + cell(speakers.nameOf(label)) : line;
  },
  rttm: (line, speakers, _, recording) => {
    const fields = line.split(" ");
    if (fields.length < 8) return line;
    fields[1] = asField(recording);
    fields[7] = asField(speakers.nameOf(speakers.labelOf(fields[7])));
    return fields.join(" ");
  },
};

/**
 * The formats that an answer has: a live session's has no files of the server, and only speakers
 * have turns for RTTM.
 */
export const formatsOf = ({ output = {} }) =>
  Object.keys(MEDIA_TYPES).filter((format) => output[format] || ["json", "txt"].includes(format));

/**
 * The text of a file.
 * @param {string} [recording] its name in RTTM
 */
export function fileText(format, answer, speakers, recording = "audio") {
  const withName = (item) =>
    item.speaker ? { ...item, speaker: speakers.nameOf(item.speaker) } : item;
  const withNames = (block) => ({ ...withName(block), words: block.words.map(withName) });
  const blocks = blocksOf(answer, speakers).map(withNames);
  if (format === "txt")
    return blocks
      .map(({ speaker, text }) => `${speaker ? `${speaker}: ` : ""}${onOneLine(text)}\n`)
      .join("");
  if (format === "json") {
    const { output, ...rest } = answer;
    const said = answer.speakers.length ? blocks : [];
    const named = { ...rest, speakers: said, words: answer.words.map(withName) };
    return `${JSON.stringify(named, null, 2)}\n`;
  }
  const lines = answer.output[format].split("\n");
  const change = WITH_NAMES[format];
  return lines.map((line, i) => change(line, speakers, lines[i - 1] ?? "", recording)).join("\n");
}

/** Download a file. */
export function save(name, format, text) {
  const type = `${MEDIA_TYPES[format]};charset=utf-8`;
  const href = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href, download: `${name}.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** The line with another name where it begins with a label; `written` is how the format has names. */
function renamed(line, speakers, written) {
  const label = speakers.labels.find((each) => line.startsWith(written(each)));
  return label ? written(speakers.nameOf(label)) + line.slice(written(label).length) : line;
}

/** A field of a table: quoted where CSV's readers need it. */
function cell(text) {
  const line = onOneLine(text);
  const safe = FORMULA.test(line) ? `'${line}` : line;
  return safe.includes('"') ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const onOneLine = (text) => text.trim().replace(/\s+/g, " ");

const escaped = (text, table) =>
  text.replace(/[<>{}\\&]/g, (character) => table[character] ?? character);
