/* A menu beside a turn: who says it. */

import { byId, html } from "./dom.js";

/** Let the user choose one of `choices`, of which those that have `isCurrent` exclude each other. */
export function choose(place, choices, onLeave) {
  const items = choices.map(({ text, colour = "", isCurrent, onChoose }) => {
    const onclick = () => (menu.remove(), onChoose());
    const radio = { role: "menuitemradio", ariaChecked: String(isCurrent) };
    const role = isCurrent === undefined ? { role: "menuitem" } : radio;
    return html`<button ...${role} class=${colour} dir="auto" onclick=${onclick}>${text}</button>`;
  });
  const menu = html`<div class="menu" popover="auto" role="menu" aria-label="Who says this?">${items}</div>`;
  menu.ontoggle = ({ newState }) => {
    if (newState !== "closed") return;
    menu.remove();
    onLeave();
  };
  menu.onkeydown = (event) => {
    if (event.key === "Tab") menu.hidePopover();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    items.at((items.indexOf(document.activeElement) + step) % items.length).focus();
  };
  byId("result").append(menu);
  menu.showPopover();
  const { left, bottom } = place.getBoundingClientRect();
  const top = Math.min(bottom, innerHeight - menu.offsetHeight);
  Object.assign(menu.style, { left: `${left}px`, top: `${top}px` });
  (items.find((_, i) => choices[i].isCurrent) ?? items[0]).focus();
}
