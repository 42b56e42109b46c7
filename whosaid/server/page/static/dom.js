/* Makes elements of templates. Text is never parsed as HTML. */

import htm from "./vendor/htm.js";

/** The element of a template: values are its properties or, without such a property, attributes. */
export const html = htm.bind(function (tag, properties, ...children) {
  this[0] = 3; // htm would return an element without values twice
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child || child === 0));
  return made;
});

export const byId = (id) => document.getElementById(id);

export function saveAs(name, file) {
  const href = URL.createObjectURL(file);
  html`<a href=${href} download=${name} />`.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
