/* Speakers: the diarizer's labels, their turns, and the user's names for them. */

export const MAX_NAME = 64; // letters, as in the API
const COLOURS = 8;

/** The turns in a file of the form RTTM, whose fields end at spaces. */
function readTurns(text) {
  return text
    .split("\n")
    .filter(Boolean)
    .map((line) => {
      const [, , , start, seconds, , , speaker] = line.split(" ");
      return { speaker, start: Number(start), end: Number(start) + Number(seconds) };
    });
}

/** A field of RTTM, which ends at a space. */
export const asField = (name) => name.trim().replace(/\s+/g, "_");

/** One line of printable characters. */
export function cleanName(text) {
  const words = text.replace(/[\p{C}\p{Z}]+/gu, " ").trim();
  return [...words].slice(0, MAX_NAME).join("").trim();
}

export class Speakers {
  /** @type {Map<string, string>} labels and names */
  #names = new Map();
  /** @type {Map<string, string>} labels by their form in RTTM */
  #fields;

  /** @param {Record<string, string>} [names] given before */
  constructor(answer, names = {}) {
    const spoken = answer.speakers.filter((each) => each.speaker !== null);
    this.#fields = new Map(spoken.map(({ speaker }) => [asField(speaker), speaker]));
    /** RTTM's turns, which may overlap; in a live session, the turns of the text. */
    this.turns = answer.output?.rttm
      ? readTurns(answer.output.rttm).map((turn) => ({ ...turn, speaker: this.labelOf(turn.speaker) }))
      : spoken.map(({ speaker, timestamp: [start, end] }) => ({ speaker, start, end }));
    const starts = [
      ...this.turns.map(({ start, speaker }) => [start, speaker]),
      ...spoken.map((each) => [each.timestamp[0], each.speaker]),
    ];
    /** In the order in which they first speak. */
    this.labels = [...new Set(starts.sort(([a], [b]) => a - b).map(([, label]) => label))];
    for (const [label, name] of Object.entries(names)) this.rename(label, name);
  }

  /** Names that differ from their labels, by label. */
  get names() {
    return Object.fromEntries(this.#names);
  }

  /** The label that a field of RTTM stands for. */
  labelOf(field) {
    return this.#fields.get(field) ?? field;
  }

  nameOf(label) {
    return this.#names.get(label) ?? label;
  }

  /** The class that colours what belongs to a speaker. */
  colourOf(label) {
    return `s${this.labels.indexOf(label) % COLOURS}`;
  }

  /** Rename a speaker; an empty name restores the label. */
  rename(label, name) {
    const clean = cleanName(name);
    if (clean && clean !== label) this.#names.set(label, clean);
    else this.#names.delete(label);
  }
}
