/* What this tab keeps until it is closed; where the browser blocks that, until the page is loaded
   again. */

/** @type {Map<string, string>} */
const entries = new Map();

/** @returns {Storage | null} */
function storage() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}

/**
 * Whether it is there when the page is loaded again: the browser may have no room.
 * @param {string} name
 * @param {string} text
 */
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

/** @param {string} name */
export const recall = (name) => entries.get(name) ?? storage()?.getItem(name) ?? null;
