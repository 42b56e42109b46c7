/* Cues: what is read on the screen at a time, made of words. The rules are those of the server
   (answer/cues.py), which says why; its files and these are the same to the letter. */

export const MAX_COLUMNS = 42;
const MAX_LINES = 2;
const MIN_SECONDS = 5 / 6;
const MAX_SECONDS = 7;
const TICK = 0.001;
const MAX_PAUSE = 1;
const LONG_PAUSE = 3;
const PART = /\s*\S+\s*/gu; // of a text: a word
// Of every script, closing quotes and brackets apart.
const SENTENCE_END =
  /[.?!…。？！｡؟۔։।॥።፧။។།]["'\p{Pe}\p{Pf}\p{Pi}]*\s*$/u;
// Whose full stops need not end a sentence (transcript.py).
const ABBREVIATIONS = new RegExp(
  "^(?:Mr|Mrs|Ms|Mx|Dr|Dra|Drs|Prof|Profa|Rev|Fr|Hr|St|Ste|Sr|Sra|Srta|Jr|Hon|Gov|Gen|Col|Maj|Capt|Lt|" +
    "Sgt|Sen|Rep|Pres|Mgr|Sig|Dott|Avv|Ing|Dipl|Ud|Uds|Vd|Vds|Exmo|Exma|dhr|mevr|mw|" +
    "vs|approx|ca|bzw|inkl|exkl|evtl|ggf|vgl|sog|Str|Mio|Mrd|z|d|u|г|др|гр|ул|им|проф|κ|د|डॉ)$",
);
const BEFORE_NUMBERS =
  /^(?:No|Nos|no|Nr|nr|Art|Abs|Abb|Kap|Fig|Vol|vol|Ch|Sec|p|pp|pág|núm|стр|ст|гл|рис)$/;
const ABBREVIATION_PAUSE = 0.5;
const STEM = /(?:^|\s)\p{P}*(?<stem>\S*)(?<!\.)\.["'\p{Pe}\p{Pf}\p{Pi}]*\s*$/u;
const SHORTENED = /^(?:\p{Lu}|[0-9]{1,3}|\p{L}{1,2}(?:\.\p{L}{1,2})+)$/u;
// Characters of two columns: East Asia's wide ones, and pictures but the halves of flags.
const WIDE = new RegExp(
  [
    /[\u1100-\u115f\u2329\u232a\u2e80-\u303e\u3041-\u3247\u3250-\u4dbf\u4e00-\ua4c6]/,
    /[\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe10-\ufe19\ufe30-\ufe6b\uff01-\uff60\uffe0-\uffe6]/,
    /[\u{16fe0}-\u{18d08}\u{1aff0}-\u{1b2fb}\u{1f200}-\u{1f265}\u{20000}-\u{3fffd}]/u,
    /(?![\u{1f1e6}-\u{1f1ff}])\p{Emoji_Presentation}/u,
  ]
    .map(({ source }) => source)
    .join("|"),
  "u",
);

/**
 * @typedef {{text: string, start: number, end: number, speaker?: string | null}} Word seconds
 * @typedef {{words: Word[][], named: boolean, start: number, end: number}} Cue lines; seconds
 * @typedef {{max_line_width?: number, max_line_count?: number, max_words_per_line?: number,
 *   highlight_words?: boolean, subtitle_speakers?: boolean}} Layout as the request's parameters
 */

/**
 * @param {Word[]} words in order of time
 * @param {boolean} named whether a cue begins with its speaker's name
 * @param {number} duration seconds
 * @param {Layout} [layout]
 * @param {string[]} [segments] the texts of Whisper's segments
 * @returns {Cue[]}
 */
export function cuesOf(words, named, duration, layout = {}, segments = []) {
  const limited = layout.max_line_width || layout.max_line_count || layout.max_words_per_line;
  const [shortest, longest] = limited ? [0, Infinity] : [MIN_SECONDS, MAX_SECONDS];
  const texts = limited
    ? filledCues(words, named, layout, startsOf(segments))
    : grouped(
        words.flatMap((word) => partsOf(word, named)),
        named,
      ).map((group) => linesOf(group, named));
  const groups = texts.map((lines) => lines.flat());
  const tick = Math.min(TICK, duration / Math.max(1, groups.length));
  const starts = [...startTimes(groups, duration, shortest, longest), duration];
  /** @type {Cue[]} */
  const made = [];
  for (const [index, group] of groups.entries()) {
    const following = groups.length - index - 1;
    const latest = duration - (following + 1) * tick;
    const start = Math.max(made.at(-1)?.end ?? 0, Math.min(starts[index], latest));
    const spokenUntil = Math.min(group.at(-1).end, start + longest);
    const readUntil = Math.max(spokenUntil, start + shortest);
    const wanted = Math.max(start + tick, Math.min(readUntil, starts[index + 1]));
    const end = Math.min(inMilliseconds(wanted) / 1000, duration - following * tick);
    made.push({ words: texts[index], named, start, end });
  }
  return made;
}

/** When each cue should appear: with its first word, or earlier if the audio ends too soon. */
function startTimes(groups, duration, shortest, longest) {
  const starts = groups.map((group) => group[0].start);
  const onTime = starts.filter((start) => start <= duration - shortest).length;
  const late = starts.slice(onTime);
  const last = groups[onTime - 1]?.at(-1).end;
  const speechEnd = onTime ? Math.min(last, starts[onTime - 1] + longest, duration) : 0;
  const share = Math.min(shortest, (duration - speechEnd) / Math.max(1, late.length));
  const earlier = late.map((start, index) =>
    Math.min(start, duration - (late.length - index) * share),
  );
  return [...starts.slice(0, onTime), ...earlier].map((start) => inMilliseconds(start) / 1000);
}

/** The lines of each cue, as openai/whisper fills them. */
function filledCues(words, named, layout, segments) {
  const { max_line_width: width = Infinity, max_line_count: count = Infinity } = layout;
  const { max_words_per_line: most = Infinity } = layout;
  const flows = width < Infinity && count < Infinity;
  /** @type {Word[][][]} */
  const cues = [];
  let [letters, place, before] = [0, 0, null];
  for (const word of words.flatMap((each) => share(each, each.text.match(PART) ?? []))) {
    const cue = cues.at(-1);
    const another = cue && before.speaker !== word.speaker;
    place = another || segments.has(letters) ? 0 : place + 1;
    letters += lettersOf(word.text);
    const begins = another || (!flows && place % most === 0);
    const pause = flows && cue && word.start - before.start > LONG_PAUSE;
    const line = cue ? joined([...cue.at(-1), word], named && cue.length === 1) : "";
    const longer = [...line].length > width;
    if (!cue || begins || pause || (longer && cue.length >= count)) cues.push([[word]]);
    else if (longer) cue.push([word]);
    else cue.at(-1).push(word);
    before = word;
  }
  return cues;
}

/** Behind how many letters of all of them each of these texts begins. */
function startsOf(texts) {
  let letters = 0;
  return new Set([0, ...texts.map((text) => (letters += lettersOf(text)))]);
}

const lettersOf = (text) => [...text.replace(/\s+/g, "")].length;

/** Groups of words that share a cue. */
function grouped(words, named) {
  /** @type {Word[][]} */
  const groups = [];
  for (const word of words) {
    const group = groups.at(-1);
    const joins = group && !beginsCue(group, word);
    if (joins && filled([...group, word], named).length <= MAX_LINES) group.push(word);
    else groups.push([word]);
  }
  return groups;
}

function beginsCue(group, word) {
  const before = group.at(-1);
  return (
    word.speaker !== before.speaker ||
    word.start - before.end > MAX_PAUSE ||
    word.end - group[0].start > MAX_SECONDS ||
    (SENTENCE_END.test(before.text) &&
      (word.start - before.end >= ABBREVIATION_PAUSE || !isAbbreviation(before.text, word.text)))
  );
}

/** Whether a text ends with an abbreviation, an initial or a number, of what follows it. */
function isAbbreviation(text, following) {
  const stem = STEM.exec(text)?.groups.stem;
  if (stem === undefined) return false;
  const after = following.trimStart().replace(/^\p{P}+/u, "");
  if (SHORTENED.test(stem) || ABBREVIATIONS.test(stem)) return true;
  if (/^\p{Ll}/u.test(after)) return /^\p{L}{2,4}$/u.test(stem);
  return BEFORE_NUMBERS.test(stem) && /^\p{Nd}/u.test(after);
}

/** Lines of at most MAX_COLUMNS, each as full as possible. */
function filled(words, named) {
  const lines = [];
  let first = 0;
  for (let index = 1; index < words.length; index += 1) {
    const nameLine = named && first === 0;
    if (columns(joined(words.slice(first, index + 1), nameLine)) > MAX_COLUMNS) {
      lines.push(words.slice(first, index));
      first = index;
    }
  }
  return [...lines, words.slice(first)];
}

/** One line if the words fit, else the two lines whose wider one is narrowest. */
function linesOf(group, named) {
  const lines = filled(group, named);
  if (lines.length === 1) return lines;
  const splits = group
    .slice(1)
    .map((_, place) => [group.slice(0, place + 1), group.slice(place + 1)]);
  const width = ([first, second]) =>
    Math.max(columns(joined(first, named)), columns(joined(second, false)));
  return splits.reduce((best, split) => (width(split) < width(best) ? split : best));
}

/** A word, or several where it is too wide for a line. */
const partsOf = (word, named) =>
  share(word, split(word.text, MAX_COLUMNS - columns(prefix(word, named))));

/** The parts of a word; they share its time by their letters. */
function share(word, parts) {
  const letters = parts.reduce((sum, part) => sum + [...part].length, 0);
  const secondsPerLetter = (word.end - word.start) / Math.max(1, letters);
  let { start } = word;
  return parts.map((text) => {
    const end = start + [...text].length * secondsPerLetter;
    const part = { ...word, text, start, end };
    start = end;
    return part;
  });
}

/** The text if it fits; else split at spaces, and within what is too wide for any line. */
function split(text, width) {
  if (columns(text.trim()) <= width) return text.trim() ? [text] : [];
  return text
    .match(PART)
    .flatMap((part) => (columns(part.trim()) <= MAX_COLUMNS ? [part] : cutUp(part)));
}

/** Parts of a quarter line each, none of which begins with a mark of the letter before. */
function cutUp(text) {
  const parts = [[]];
  for (const letter of text) {
    const isFull = parts.at(-1).length >= Math.floor(MAX_COLUMNS / 4);
    if (isFull && !/[\p{M}\p{Z}]/u.test(letter)) parts.push([]);
    parts.at(-1).push(letter);
  }
  return parts.map((letters) => letters.join(""));
}

const joined = (words, named) =>
  prefix(words[0], named) + onOneLine(words.map(({ text }) => text).join(""));

/** What stands before the first word of a cue. */
export const prefix = ({ speaker }, named) => (named && speaker ? `${speaker}: ` : "");

/** @param {string} text without line breaks and tabs, which have a meaning in every format */
export const onOneLine = (text) => text.trim().replace(/\s+/g, " ");

/** @param {string} text how wide it is on the screen */
export const columns = (text) =>
  [...text].reduce((sum, letter) => sum + (WIDE.test(letter) ? 2 : 1), 0);

/**
 * Seconds in whole milliseconds; of two that are equally near the even one.
 * @param {number} seconds
 */
export function inMilliseconds(seconds) {
  // Only a sixteenth can lie in the middle, and a thousand of them are exact.
  if (!Number.isInteger(seconds * 16)) return Math.round(Number(seconds.toFixed(3)) * 1000);
  const whole = Math.floor(seconds * 1000);
  const rest = seconds * 1000 - whole;
  return rest === 0.5 ? whole + (whole % 2) : Math.round(seconds * 1000);
}
