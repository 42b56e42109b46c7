/* Splits an answer into blocks of one speaker's text and words. */

const MAX_PAUSE = 2; // seconds; a longer one ends a stretch, as on the server

/**
 * The speakers' segments or, without speakers, the chunks. Successive segments of speakers with one
 * name are joined.
 */
export function blocksOf({ speakers, chunks, words = [] }, names) {
  if (!speakers.length) return withWords(chunks, words);
  const blocks = [];
  for (const [place, block] of speakers.entries()) {
    if (place && isOneStretch(speakers[place - 1], block, names))
      blocks.push(joined(blocks.pop(), block));
    else blocks.push(block);
  }
  return blocks;
}

/** Whether two labels with one name follow each other without a pause. */
const isOneStretch = (before, block, names) =>
  before.speaker !== block.speaker &&
  names.nameOf(before.speaker) === names.nameOf(block.speaker) &&
  before.channel === block.channel &&
  before.language === block.language &&
  block.timestamp[0] - before.timestamp[1] <= MAX_PAUSE;

const joined = (before, block) => ({
  ...before,
  text: before.text + block.text,
  timestamp: [before.timestamp[0], block.timestamp[1]],
  words: [...before.words, ...block.words],
});

/** Chunks with their words, of which an answer without speakers has one list: by their letters. */
function withWords(chunks, words) {
  let next = 0;
  return chunks.map((chunk) => {
    const letters = bare(chunk.text);
    let [stop, read] = [next, ""];
    while (stop < words.length && letters.startsWith(read + bare(words[stop].word))) {
      read += bare(words[stop].word);
      stop += 1;
    }
    // A text whose words have no times has no words.
    if (read !== letters) stop = next;
    const made = { ...chunk, words: words.slice(next, stop) };
    next = stop;
    return made;
  });
}

const bare = (text) => text.replace(/\s+/g, "");
