/* What this tab keeps until it is closed: the key and the last transcript, so that a reload loses
   neither. The recording is not kept: it may be long, and private. If the browser blocks storage,
   entries last until the page is loaded again. */

/**
 * @typedef {object} Result a recording's transcript
 * @property {any} answer
 * @property {string} file the recording's name
 * @property {number} bytes its size
 * @property {number} seconds that the answer took; of a live session, the delay of most words
 * @property {boolean} [isLive] whether words came live
 * @property {Record<string, string>} names of speakers, by label
 * @property {boolean} diarizes whether speakers were requested
 */

const RESULT = "transcript";
/** @type {Map<string, string>} */
const entries = new Map();

function storage() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}

/** Whether a reload finds the entry: the browser may have no room. */
export function remember(name, text) {
  const tab = storage();
  entries.set(name, text);
  tab?.removeItem(name);
  try {
    tab?.setItem(name, text);
    return tab !== null;
  } catch {
    return false;
  }
}

export const recall = (name) => entries.get(name) ?? storage()?.getItem(name) ?? null;

export const keep = (result) => remember(RESULT, JSON.stringify(result));

export function kept() {
  try {
    return JSON.parse(recall(RESULT) ?? "null");
  } catch {
    return null;
  }
}
