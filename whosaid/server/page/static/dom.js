/* Makes elements. Text is never parsed as HTML. */

/**
 * An element with properties (`className`, `textContent`, ...), attributes (names that are no
 * property, `aria-label`) and children.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "dataset") Object.assign(made.dataset, value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);
