/* Server-sent events from text that comes in pieces: each is one line of JSON. */

export class EventReader {
  #rest = "";

  /**
   * The messages that are complete with this piece; comments, which keep a connection open, are
   * left out.
   * @param {string} text
   * @returns {any[]}
   */
  read(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    return blocks
      .filter((block) => block.startsWith("data:"))
      .map((block) => JSON.parse(block.slice(5)));
  }
}
