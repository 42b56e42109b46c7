/* The files that a person takes away. They are the server's own (`output`); a speaker's label is
   replaced by the name given here, and only where the format has the label: said words stay. */

import { element } from "./dom.js";

/** @typedef {import("./speakers.js").Speakers} Speakers */

const MEDIA_TYPES = {
  json: "application/json",
  srt: "application/x-subrip",
  vtt: "text/vtt",
  txt: "text/plain",
  tsv: "text/tab-separated-values",
  rttm: "text/plain",
};
const MAX_COLUMNS = 42;
// SubRip has no escapes (answer/subtitles.py).
const LOOKALIKES = { "<": "\u2039", ">": "\u203a", "{": "(", "}": ")", "\\": "\u2216" };
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** @type {Record<string, (text: string, speakers: Speakers, answer: any) => string>} */
const RENAME = {
  srt: (text, speakers) =>
    text
      .split("\n\n")
      .map((cue) => renameCue(cue, speakers))
      .join("\n\n"),
  vtt: (text, speakers) =>
    text.replace(
      /^<v ([^>]*)>/gm,
      (tag, label) => `<v ${replaceAll(speakers.nameOf(label), ENTITIES)}>`,
    ),
  // A line for each entry of `speakers`, in a table after a heading.
  txt: (text, speakers, answer) =>
    eachLine(text, (line, place) => {
      const label = answer.speakers[place]?.speaker;
      return label ? speakers.nameOf(label) + line.slice(label.length) : line;
    }),
  tsv: (text, speakers, answer) =>
    eachLine(text, (line, place) => {
      const label = answer.speakers[place - 1]?.speaker;
      return label
        ? line.slice(0, line.lastIndexOf("\t") + 1) + cell(speakers.nameOf(label))
        : line;
    }),
  rttm: (text, speakers) =>
    eachLine(text, (line) => {
      const fields = line.split(" ");
      if (fields.length > 7) fields[7] = speakers.nameOf(fields[7]).replaceAll(" ", "_");
      return fields.join(" ");
    }),
};

/**
 * The formats that there are for an answer; RTTM only where speakers were told apart.
 * @param {any} answer
 */
export const formatsOf = (answer) =>
  Object.keys(MEDIA_TYPES).filter((format) => format === "json" || answer.output[format]);

/**
 * The text of a file.
 * @param {string} format
 * @param {any} answer
 * @param {Speakers} speakers
 */
export function fileText(format, answer, speakers) {
  if (format === "json") return `${JSON.stringify(renameAnswer(answer, speakers), null, 2)}\n`;
  return RENAME[format](answer.output[format], speakers, answer);
}

/**
 * Hand a file to the browser.
 * @param {string} name
 * @param {string} format
 * @param {string} text
 */
export function save(name, format, text) {
  const href = URL.createObjectURL(
    new Blob([text], { type: `${MEDIA_TYPES[format]};charset=utf-8` }),
  );
  element("a", { href, download: `${name}.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

function renameAnswer({ output, ...answer }, speakers) {
  const renamed = (item) =>
    item.speaker ? { ...item, speaker: speakers.nameOf(item.speaker) } : item;
  return {
    ...answer,
    speakers: answer.speakers.map((each) => ({ ...renamed(each), words: each.words.map(renamed) })),
    words: answer.words.map(renamed),
  };
}

/** A cue is its number, its times, and one or two lines, the first after its speaker's name. */
function renameCue(cue, speakers) {
  const [number, times, ...lines] = cue.split("\n");
  if (!lines.length) return cue;
  const label = speakers.labels.find((each) => lines[0].startsWith(`${each}: `));
  if (!label) return cue;
  const name = replaceAll(speakers.nameOf(label), LOOKALIKES);
  lines[0] = name + lines[0].slice(label.length);
  return [number, times, ...(lines[0].length > MAX_COLUMNS ? balance(lines, name) : lines)].join(
    "\n",
  );
}

/** Two lines whose wider one is as narrow as can be, and whose first one has the whole name. */
function balance(lines, name) {
  const text = lines.join(" ").trimEnd();
  const spaces = [...text.matchAll(/ /g)]
    .map((match) => match.index)
    .filter((place) => place > `${name}: `.length);
  if (!spaces.length) return lines;
  const width = (place) => Math.max(place, text.length - place - 1);
  const best = spaces.reduce((a, b) => (width(b) < width(a) ? b : a));
  const end = lines.at(-1) === "" ? [""] : []; // of the file
  return [text.slice(0, best), text.slice(best + 1), ...end];
}

/** A field of a table: quoted where CSV's readers need it. */
const cell = (text) => (text.includes('"') ? `"${text.replaceAll('"', '""')}"` : text);

const eachLine = (text, change) => text.split("\n").map(change).join("\n");
const replaceAll = (text, table) =>
  text.replace(/[<>{}\\&]/g, (character) => table[character] ?? character);
