/* The microphone, as a file. */

// What browsers record, the best first, and how such a file is called.
const FORMATS = [
  ["audio/webm;codecs=opus", "webm"],
  ["audio/mp4", "m4a"],
  ["audio/ogg;codecs=opus", "ogg"],
];

/** Why there is no microphone, by the name of the browser's error. */
const REASONS = {
  NotAllowedError: "The browser did not allow this page to use the microphone.",
  NotFoundError: "No microphone was found.",
  NotReadableError: "The microphone is in use by something else.",
};

export class Recorder {
  /** @type {MediaRecorder | null} */
  #recorder = null;

  /** Whether something is being recorded. */
  get active() {
    return this.#recorder !== null;
  }

  /** Begin. Throws an Error that says why there is no microphone. */
  async start() {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers lend the microphone to pages on https or localhost only.");
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? "The microphone cannot be used.");
    }
    const [mimeType] = FORMATS.find(([type]) => MediaRecorder.isTypeSupported(type)) ?? [];
    this.#recorder = new MediaRecorder(stream, { mimeType });
    this.#recorder.start();
  }

  /**
   * End, and hand over what was recorded.
   * @returns {Promise<File>}
   */
  stop() {
    const recorder = this.#recorder;
    this.#recorder = null;
    return new Promise((resolve) => {
      recorder.ondataavailable = ({ data }) => {
        for (const track of recorder.stream.getTracks()) track.stop();
        const type = data.type.split(";")[0];
        const ending = FORMATS.find(([each]) => each.startsWith(type))?.[1] ?? "webm";
        const now = new Date().toLocaleString("sv").slice(0, 16).replace(":", ".");
        resolve(new File([data], `Recording ${now}.${ending}`, { type }));
      };
      recorder.stop();
    });
  }
}
