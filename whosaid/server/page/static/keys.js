/* Keys that work everywhere on the page, also while somebody types, and the list of all keys. */

import { html } from "./dom.js";

const LIST = [
  ["Esc", "Play or pause; also Space outside of text"],
  ["Alt J / Alt L", "Back or on by 3 seconds"],
  ["Alt , / Alt .", "Slower or faster"],
  ["Ctrl Enter", "Play from the cursor"],
  ["Alt N / Alt Shift N", "Select and play the next or the last doubtful word"],
  ["Enter", "Split the turn at the cursor"],
  ["Backspace", "At a turn's start: join it to the one before"],
  ["Alt 1 to Alt 9", "Give the turn, or the selected words, to this speaker"],
  ["Alt 0", "Give them to a new speaker"],
  ["Alt S", "Choose the speaker from a list"],
  ["Ctrl Z / Ctrl Shift Z", "Undo, redo"],
];

const FIELDS = "input, select, textarea, [popover] *, dialog *";

/** The name of the action that a key stands for; "" if there is none. */
function actionOf(event) {
  const { code, key, altKey, ctrlKey, metaKey, shiftKey, target } = event;
  const hasControl = ctrlKey || metaKey;
  if (altKey && !hasControl) {
    if (code === "KeyN") return shiftKey ? "previousDoubtful" : "nextDoubtful";
    if (/^Digit\d$/.test(code)) return code;
    const names = { KeyJ: "back", KeyL: "on", Comma: "slower", Period: "faster", KeyS: "choose" };
    return names[code] ?? "";
  }
  if (key === "Enter" && hasControl) return "hear";
  if (code === "Escape") return target.closest(FIELDS) ? "" : "toggle";
  const isElsewhere = !target.closest(`${FIELDS}, button, summary, a, [contenteditable]`);
  return code === "Space" && isElsewhere && !hasControl ? "toggle" : "";
}

/** `act(action)` returns whether the action was possible. */
export function listenToKeys(act) {
  const onKey = (event) => {
    const action = event.isComposing ? "" : actionOf(event);
    if (!action || !act(action)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  document.addEventListener("keydown", onKey, { capture: true });
}

const isMac = navigator.platform.startsWith("Mac");
const named = (key) => (isMac ? key.replace("Ctrl", "⌘").replace("Alt", "⌥") : key);

export const keyList = () =>
  LIST.flatMap(
    ([keys, meaning]) => html`
      <dt>${keys.split(" / ").map((key) => html`<kbd>${named(key)}</kbd>`)}</dt>
      <dd>${meaning}</dd>
    `,
  );
