/* Speakers: the diarizer's labels, their turns, and the user's names for them. */

export const MAX_NAME = 64; // letters, as in the API
const COLOURS = 8;
const MOST_ALONE = 10; // seconds; the server takes clips of up to 30

/** The turns in a file of the form RTTM, whose fields end at spaces. */
function readTurns(text) {
  const lines = text.split("\n").filter(Boolean);
  return lines.map((line) => {
    const [, , , start, seconds, , , speaker] = line.split(" ");
    return { speaker, start: Number(start), end: Number(start) + Number(seconds) };
  });
}

/** One line of printable characters. */
export function cleanName(text) {
  const words = text.replace(/[\p{C}\p{Z}]+/gu, " ").trim();
  return [...words].slice(0, MAX_NAME).join("").trim();
}

export class Speakers {
  #names;
  #places; // of labels, of which some may speak no more

  /** `names` are by label; colours are those of the speakers `before`. */
  constructor(answer, names = {}, before = undefined) {
    const spoken = answer.speakers
      .filter(({ speaker }) => speaker !== null)
      .map(({ speaker, timestamp: [start, end] }) => ({ speaker, start, end }));
    const labels = new Map(spoken.map(({ speaker }) => [speaker.trim().replace(/\s+/g, "_"), speaker]));
    const named = (turn) => ({ ...turn, speaker: labels.get(turn.speaker) ?? turn.speaker });
    /** RTTM's turns, which may overlap; else the turns of the text. */
    this.turns = answer.output?.rttm ? readTurns(answer.output.rttm).map(named) : spoken;
    const inOrder = [...this.turns, ...spoken].sort((one, other) => one.start - other.start);
    const found = new Set(inOrder.map(({ speaker }) => speaker));
    const known = [...new Set([...(before?.#places.keys() ?? []), ...found])];
    this.#places = new Map(known.map((label, place) => [label, place]));
    /** In the order in which they first speak; new ones last. */
    this.labels = known.filter((label) => found.has(label));
    this.#names = names;
  }

  nameOf = (label) => this.#names[label] ?? label;
  colourOf = (label) => `s${(this.#places.get(label) ?? this.#places.size) % COLOURS}`;

  /** The longest stretch in which a speaker speaks alone, in seconds, cut to the longest clip. */
  aloneIn(label) {
    const isOwn = ({ speaker }) => speaker === label;
    let longest = { start: 0, end: 0 };
    for (const { start, end } of this.turns.filter(isOwn)) {
      const others = this.turns.filter((turn) => !isOwn(turn) && turn.end > start && turn.start < end);
      others.sort((one, other) => one.start - other.start);
      let from = start;
      for (const other of [...others, { start: end, end }]) {
        if (other.start - from > longest.end - longest.start) longest = { start: from, end: other.start };
        from = Math.max(from, other.end);
      }
    }
    return { start: longest.start, end: Math.min(longest.end, longest.start + MOST_ALONE) };
  }
}
