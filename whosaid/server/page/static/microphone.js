/* Sound from the microphone or a recording: samples while it lasts, and files of them. */

export const PIECES = 10; // a second, in which samples come

const UNUSABLE = "The microphone cannot be used.";
/** Why there is no microphone, by the name of the browser's error. */
const REASONS = {
  NotAllowedError: "The browser did not allow this page to use the microphone.",
  NotFoundError: "No microphone was found.",
  NotReadableError: "The microphone is in use by something else.",
};

/**
 * Give `onPiece` a source's sound, a tenth of a second at a time, little-endian as every machine with
 * a browser is. Returns a function that waits for the last piece.
 */
async function tap(context, source, onPiece) {
  await context.audioWorklet.addModule(new URL("microphone_worklet.js", import.meta.url));
  await context.resume();
  const node = new AudioWorkletNode(context, "pieces", {
    numberOfOutputs: 0,
    channelCount: 1,
    channelCountMode: "explicit",
    processorOptions: { piece: Math.round(context.sampleRate / PIECES) },
  });
  source.connect(node);
  const { promise, resolve } = Promise.withResolvers();
  node.port.onmessage = ({ data: { samples, last } }) => {
    onPiece(samples);
    if (last) resolve();
  };
  return async () => {
    // A context that the system has suspended sends no last piece.
    if (context.state !== "running") return;
    node.port.postMessage("end");
    await promise;
  };
}

export class Microphone {
  rate = 1; // samples a second, the browser's own: the server resamples
  #samples = 0;
  #heardAt = 0;
  #end = async () => {};

  get seconds() {
    return this.#samples / this.rate;
  }

  /** The recording's time of a sound that is made now; goes on when the recording has ended. */
  get now() {
    return this.seconds + (performance.now() - this.#heardAt) / 1000;
  }

  /** Begin. Throws an Error that says why there is no microphone. */
  async start({ onPiece, onLost }) {
    const stream = await ask();
    const context = new AudioContext();
    const release = async () => {
      for (const track of stream.getTracks()) track.stop();
      await context.close(); // browsers have few of them
    };
    try {
      const source = context.createMediaStreamSource(stream);
      const finish = await tap(context, source, (samples) => {
        this.#samples += samples.length;
        this.#heardAt = performance.now();
        onPiece(samples);
      });
      this.#end = () => finish().then(release);
    } catch {
      await release();
      throw new Error(UNUSABLE);
    }
    this.rate = context.sampleRate;
    this.#heardAt = performance.now();
    stream.getAudioTracks()[0].onended = onLost;
  }

  /** End; by then `onPiece` has received all samples. */
  stop = () => this.#end();
}

async function ask() {
  if (!navigator.mediaDevices)
    throw new Error("Browsers allow the microphone only on https or localhost.");
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (error) {
    throw new Error(REASONS[error.name] ?? UNUSABLE);
  }
}

/** A file of a recording's sound between two seconds, which takes as long as it is. */
export async function clipOf(file, start, end, name) {
  const audio = new Audio(URL.createObjectURL(file));
  const context = new AudioContext();
  const pieces = [];
  try {
    const isEnough = () => pieces.length >= PIECES * (end - start);
    const { promise, resolve } = Promise.withResolvers();
    audio.onended = resolve;
    audio.currentTime = start;
    await tap(context, context.createMediaElementSource(audio), (samples) => {
      if (audio.currentTime > start && !isEnough()) pieces.push(samples);
      if (isEnough()) resolve();
    });
    await audio.play();
    await promise;
  } finally {
    audio.pause();
    URL.revokeObjectURL(audio.src);
    await context.close();
  }
  return wavFile(name, pieces, context.sampleRate);
}

export function wavFile(name, parts, rate) {
  const samples = new Blob(parts);
  // "RIFF", length, "WAVE", "fmt ", its length, PCM of 1 channel, rates of samples and of bytes,
  // 2 bytes a sample of 16 bits, "data", length.
  const header = [
    [0x46464952, 36 + samples.size, 0x45564157, 0x20746d66, 16, 0x00010001],
    [rate, 2 * rate, 0x00100002, 0x61746164, samples.size],
  ];
  return new File([new Uint32Array(header.flat()), samples], name, { type: "audio/wav" });
}

export const newName = () =>
  `Recording ${new Date().toLocaleString("sv").slice(0, 16).replace(":", ".")}.wav`;
