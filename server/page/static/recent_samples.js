/* The last samples of the microphone, for a live session that goes on where another was lost. */

import { RATE } from "./microphone.js";

// A server reads a session's audio up to a minute ahead of real time, and words are to catch up.
const MOST_SECONDS = 40;

export class RecentSamples {
  /** @type {Int16Array[]} */
  #pieces = [];
  #start = 0; // samples before the first piece
  #length = 0;

  /** @param {Int16Array} samples */
  push(samples) {
    this.#pieces.push(samples);
    this.#length += samples.length;
    while (this.#length - this.#pieces[0].length >= MOST_SECONDS * RATE) this.#drop();
  }

  /**
   * What was recorded from a moment on, as far back as it is here, and where that begins.
   * @param {number} seconds
   * @returns {{start: number, pieces: Int16Array[]}} seconds of the recording
   */
  from(seconds) {
    let [start, place] = [this.#start, 0];
    while (place < this.#pieces.length && start + this.#pieces[place].length <= seconds * RATE)
      start += this.#pieces[place++].length;
    return { start: start / RATE, pieces: this.#pieces.slice(place) };
  }

  #drop() {
    const { length } = this.#pieces.shift();
    this.#start += length;
    this.#length -= length;
  }
}
