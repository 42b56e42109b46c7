/* An answer as stretches of text, each of one speaker, with words. */

/**
 * @typedef {{text: string, timestamp: [number, number], speaker?: string | null,
 *   words: any[]}} Block
 */

/**
 * What each speaker says or, where nobody looked for speakers, the chunks.
 * @param {any} answer
 * @returns {Block[]}
 */
export const blocksOf = ({ speakers, chunks, words = [] }) =>
  speakers.length ? speakers : withWords(chunks, words);

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
    // Where a text's words could not be told the times of, it has none.
    if (read !== letters) stop = next;
    const made = { ...chunk, words: words.slice(next, stop) };
    next = stop;
    return made;
  });
}

/** @param {string} text */
const bare = (text) => text.replace(/\s+/g, "");
