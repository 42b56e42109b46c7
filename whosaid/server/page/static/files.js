/* Files of a transcript, as the server writes them; without the server, JSON and plain text. */

import { transcriptFile } from "./api.js";
import { clock } from "./format.js";
import { turnsOf } from "./manuscript.js";

const FORMATS = ["docx", "txt", "md", "html", "srt", "vtt", "tsv", "json"];

/** The formats that an answer has: only speakers have turns for RTTM. */
export const formatsOf = ({ speakers }) => [...FORMATS, ...(speakers.length ? ["rttm"] : [])];

/** A transcript's file. Throws ApiError. JSON and TXT are written here if the server is away or finds it too large. */
export async function fileOf(format, answer, names, parameters) {
  try {
    return await transcriptFile(format, { transcript: answer, speaker_names: names, parameters });
  } catch (error) {
    const write = { json: jsonOf, txt: textOf }[format];
    if (![0, 413].includes(error.status) || !write) throw error;
    return new Blob([write(answer, names)], { type: "text/plain;charset=utf-8" });
  }
}

const jsonOf = (answer, names) =>
  `${JSON.stringify({ ...answer, speaker_names: names }, null, 2)}\n`;

const textOf = (answer, names) =>
  turnsOf(answer)
    .map(({ speaker, text, timestamp: [at] }) => {
      const name = speaker ? `${names[speaker] ?? speaker}: ` : "";
      return `[${clock(at)}] ${name}${text.trim()}\n`;
    })
    .join("");
