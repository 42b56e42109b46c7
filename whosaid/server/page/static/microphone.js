/* The microphone: gives samples while it is on, and a file of all samples at the end. */

/** Pieces a second in which samples come. */
export const PIECES = 10;
// Pieces that become one part of the file, which browsers may keep out of their memory.
const PART = 100;
const HEADER_BYTES = 44;

const UNUSABLE = "The microphone cannot be used.";
/** Why there is no microphone, by the name of the browser's error. */
const REASONS = {
  NotAllowedError: "The browser did not allow this page to use the microphone.",
  NotFoundError: "No microphone was found.",
  NotReadableError: "The microphone is in use by something else.",
};

export class Microphone {
  /** Samples a second, the browser's own: the server resamples. */
  rate = 1;
  /** @type {MediaStream | null} */
  #stream = null;
  /** @type {AudioContext | null} */
  #context = null;
  /** @type {AudioWorkletNode | null} */
  #node = null;
  /** @type {Blob[]} */
  #parts = [];
  /** @type {Int16Array[]} that are no part yet */
  #pieces = [];
  #samples = 0;
  #heardAt = 0;
  /** @type {() => void} */
  #onLast = () => {};

  /** The recorded seconds. */
  get seconds() {
    return this.#samples / this.rate;
  }

  /** The recording's time of a sound that is made now; goes on when the recording has ended. */
  get now() {
    return this.seconds + (performance.now() - this.#heardAt) / 1000;
  }

  /**
   * Begin. Throws an Error that says why there is no microphone.
   * @param {{onPiece: (samples: Int16Array) => void, onLost: () => void}} listeners `onPiece` gets
   *   a tenth of a second at a time, little-endian as every machine with a browser is; `onLost` is
   *   called when the microphone is taken away
   */
  async start({ onPiece, onLost }) {
    const stream = await this.#ask();
    [this.#parts, this.#pieces, this.#samples] = [[], [], 0];
    const context = new AudioContext();
    try {
      await context.audioWorklet.addModule(new URL("microphone_worklet.js", import.meta.url));
      await context.resume();
      this.rate = context.sampleRate;
      this.#node = new AudioWorkletNode(context, "pieces", {
        numberOfOutputs: 0,
        channelCount: 1,
        channelCountMode: "explicit",
        processorOptions: { piece: Math.round(this.rate / PIECES) },
      });
      context.createMediaStreamSource(stream).connect(this.#node);
    } catch {
      for (const track of stream.getTracks()) track.stop();
      await context.close(); // browsers have few of them
      throw new Error(UNUSABLE);
    }
    this.#node.port.onmessage = ({ data: { samples, last } }) => {
      this.#keep(samples);
      onPiece(samples);
      if (last) this.#onLast();
    };
    stream.getAudioTracks()[0].onended = onLost;
    this.#heardAt = performance.now();
    [this.#stream, this.#context] = [stream, context];
  }

  /** End, and return the recording; by then `onPiece` has received all of it. */
  async stop() {
    const [stream, context] = [this.#stream, this.#context];
    this.#stream = this.#context = null;
    // A context that the system has suspended sends no last piece.
    if (context.state === "running") {
      await new Promise((resolve) => {
        this.#onLast = () => resolve(null);
        this.#node.port.postMessage("end");
      });
    }
    for (const track of stream.getTracks()) track.stop();
    await context.close();
    const now = new Date().toLocaleString("sv").slice(0, 16).replace(":", ".");
    const parts = [header(this.#samples, this.rate), ...this.#parts, ...this.#pieces];
    [this.#parts, this.#pieces] = [[], []];
    return new File(parts, `Recording ${now}.wav`, { type: "audio/wav" });
  }

  async #ask() {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers allow the microphone only on https or localhost.");
    }
    try {
      return await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? UNUSABLE);
    }
  }

  #keep(samples) {
    this.#samples += samples.length;
    this.#heardAt = performance.now();
    this.#pieces.push(samples);
    if (this.#pieces.length < PART) return;
    this.#parts.push(new Blob(this.#pieces));
    this.#pieces = [];
  }
}

/** The first bytes of a WAV file of so many 16-bit samples, mono. */
function header(samples, rate) {
  const view = new DataView(new ArrayBuffer(HEADER_BYTES));
  const text = (at, letters) =>
    [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  const bytes = 2 * samples;
  text(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + bytes, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, bytes, true);
  return view.buffer;
}
