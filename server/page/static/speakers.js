/* Who speaks: labels by diarization, the turns of each, the names that a person gives them. */

/** A line of subtitles has 42 columns, name included. */
export const MAX_NAME = 24;
const COLOURS = 8;

/** @typedef {{speaker: string, start: number, end: number}} Turn seconds */

/**
 * The turns in a file of the form RTTM, whose fields end at spaces.
 * @param {string} text
 * @returns {Turn[]}
 */
export function readTurns(text) {
  return text
    .split("\n")
    .filter(Boolean)
    .map((line) => {
      const [, , , start, seconds, , , speaker] = line.split(" ");
      return { speaker, start: Number(start), end: Number(start) + Number(seconds) };
    });
}

/**
 * One line of printable characters that fits beside a subtitle.
 * @param {string} text
 */
export function cleanName(text) {
  const words = text.replace(/[\p{C}\p{Z}]+/gu, " ").trim();
  return [...words].slice(0, MAX_NAME).join("").trim();
}

export class Speakers {
  /** @type {Map<string, string>} labels and names */
  #names = new Map();

  /**
   * @param {any} answer
   * @param {Record<string, string>} [names] given before
   */
  constructor(answer, names = {}) {
    this.turns = readTurns(answer.output?.rttm ?? "");
    const spoken = answer.speakers.filter((each) => each.speaker !== null);
    const starts = [
      ...this.turns.map((turn) => [turn.start, turn.speaker]),
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

  /** @param {string} label */
  nameOf(label) {
    return this.#names.get(label) ?? label;
  }

  /**
   * The class that colours what belongs to a speaker.
   * @param {string} label
   */
  colourOf(label) {
    return `s${this.labels.indexOf(label) % COLOURS}`;
  }

  /**
   * Call a speaker something else; an empty name brings the label back.
   * @param {string} label
   * @param {string} name
   */
  rename(label, name) {
    const clean = cleanName(name);
    if (clean && clean !== label) this.#names.set(label, clean);
    else this.#names.delete(label);
  }
}
