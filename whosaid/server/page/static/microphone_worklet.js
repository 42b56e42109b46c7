/* Runs in the browser's audio thread: cuts the microphone's samples into pieces of 16 bits. */

class Pieces extends AudioWorkletProcessor {
  #samples;
  #count = 0;
  #ended = false;

  constructor({ processorOptions: { piece } }) {
    super();
    this.#samples = new Int16Array(piece);
    this.port.onmessage = () => {
      this.#ended = true;
      this.#post(true);
    };
  }

  /** @param {Float32Array[][]} inputs of one channel, which is absent while nothing is connected */
  process([[channel = []]]) {
    for (const sample of this.#ended ? [] : channel) {
      this.#samples[this.#count] = Math.round(32767 * Math.max(-1, Math.min(1, sample)));
      this.#count += 1;
      if (this.#count === this.#samples.length) this.#post(false);
    }
    return !this.#ended;
  }

  #post(last) {
    const samples = this.#samples.slice(0, this.#count);
    this.#count = 0;
    this.port.postMessage({ samples, last }, [samples.buffer]);
  }
}

registerProcessor("pieces", Pieces);
