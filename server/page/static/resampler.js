/* Samples at another rate, from pieces of any size: where they are cut makes no difference.

   Each new sample is a sum of old ones, weighted by a sinc in a Blackman window: a low-pass filter
   that reaches as far into the future as into the past, so that times stay. */

// Zero crossings of the sinc on either side, and where it cuts off, as a share of the lower rate's
// half: up to 0.8 of that half nothing is lost, and what lies beyond it is down by 70 dB.
const CROSSINGS = 32;
const CUTOFF = 0.9;

export class Resampler {
  #step;
  #phases;
  #half;
  /** @type {Float32Array[]} weights of `2 * half` samples, for each place between two of them */
  #weights;
  /** @type {Float32Array} samples that the next new one needs, or one after it */
  #held;
  #phase = 0;

  /**
   * @param {number} from samples a second, whole
   * @param {number} to samples a second, whole
   */
  constructor(from, to) {
    const divisor = greatestDivisor(from, to);
    this.#step = from / divisor;
    this.#phases = to / divisor;
    const scale = Math.min(1, to / from);
    this.#half = Math.ceil(CROSSINGS / scale);
    this.#weights = Array.from({ length: this.#phases }, (_, phase) =>
      weights(phase / this.#phases, this.#half, CUTOFF * scale),
    );
    this.#held = new Float32Array(this.#half - 1);
  }

  /**
   * The new samples that are complete with these.
   * @param {Float32Array} samples
   * @returns {Float32Array}
   */
  push(samples) {
    const heard = new Float32Array(this.#held.length + samples.length);
    heard.set(this.#held);
    heard.set(samples, this.#held.length);
    const made = [];
    let start = 0;
    while (start + 2 * this.#half <= heard.length) {
      const weight = this.#weights[this.#phase];
      let sum = 0;
      for (let i = 0; i < weight.length; i += 1) sum += weight[i] * heard[start + i];
      made.push(sum);
      this.#phase += this.#step;
      start += Math.floor(this.#phase / this.#phases);
      this.#phase %= this.#phases;
    }
    this.#held = heard.slice(start);
    return Float32Array.from(made);
  }

  /** The new samples of what is held, when no more will come. */
  flush() {
    return this.push(new Float32Array(this.#half));
  }
}

/**
 * Weights of the samples around a place `after` (0 to 1) the one in the middle; they sum to 1.
 * @param {number} after
 * @param {number} half
 * @param {number} cutoff as a share of half the old rate
 */
function weights(after, half, cutoff) {
  const found = Float64Array.from({ length: 2 * half }, (_, i) => {
    const distance = i - (half - 1) - after;
    const x = Math.PI * cutoff * distance;
    const turn = (Math.PI * distance) / half;
    const window = 0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn);
    return (x ? Math.sin(x) / x : 1) * window;
  });
  const sum = found.reduce((total, each) => total + each, 0);
  return Float32Array.from(found, (each) => each / sum);
}

/**
 * @param {number} a
 * @param {number} b
 * @returns {number}
 */
const greatestDivisor = (a, b) => (b ? greatestDivisor(b, a % b) : a);
