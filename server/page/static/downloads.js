/* Hands files to the browser. */

import { element } from "./dom.js";

const MEDIA_TYPES = {
  json: "application/json",
  srt: "application/x-subrip",
  vtt: "text/vtt",
  txt: "text/plain",
  tsv: "text/tab-separated-values",
  rttm: "text/plain",
};

/**
 * Hand a file to the browser.
 * @param {string} name
 * @param {string} format
 * @param {string} text
 */
export function save(name, format, text) {
  const type = `${MEDIA_TYPES[format]};charset=utf-8`;
  const href = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href, download: `${name}.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
