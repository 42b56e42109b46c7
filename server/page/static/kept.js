/* The last transcript, kept by this tab until it is closed, so that a reload loses nothing. The
   recording is not kept: it may be long, and private. */

import { recall, remember } from "./storage.js";

const NAME = "transcript";

/**
 * @typedef {object} Result a recording's transcript
 * @property {any} answer
 * @property {string} file the recording's name
 * @property {number} bytes its size
 * @property {number} seconds that the answer took; where words came live, the delay of most words
 * @property {boolean} [isLive] whether words came live
 * @property {Record<string, string>} names of speakers, by label
 * @property {boolean} diarizes whether speakers were asked for
 */

/**
 * Whether the browser had room for it.
 * @param {Result} result
 */
export const keep = (result) => remember(NAME, JSON.stringify(result));

/** @returns {Result | null} */
export function kept() {
  try {
    return JSON.parse(recall(NAME) ?? "null");
  } catch {
    return null;
  }
}
