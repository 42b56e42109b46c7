/* A live session: sound goes to the server while it is made, and what was heard comes back. */

import { ApiError, info, liveSocket } from "./api.js";
import { RATE } from "./microphone.js";

const TRANSCRIPTION = "item.input_audio_transcription";
const DONE = 1000; // WebSocket's status of what ends as it should
const FULL = "The server holds as many live sessions as it may.";
const NOT_OPENED = "No live session was opened; something on the way may take no WebSockets.";

/**
 * A session's settings by the parameters of a recording, as far as live sessions have them.
 * @param {any} parameters of `POST /`
 * @param {boolean} speakers whether they are to be told apart
 */
export function settings({ language, prompt, hotwords }, speakers) {
  const include = [`${TRANSCRIPTION}.words`];
  if (speakers) include.push(`${TRANSCRIPTION}.segments`);
  const transcription = { language, prompt, keywords: hotwords };
  const format = { type: "audio/pcm", rate: RATE };
  return { type: "transcription", include, audio: { input: { format, transcription } } };
}

export class LiveSession {
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {Int16Array[]} what was said before the socket was open */
  #waiting = [];
  #finishing = false;
  #ended = false;
  /** @type {ApiError | null} what the server said last */
  #error = null;

  /**
   * @param {{onOpen: () => void, onEvent: (event: any) => void, onError: (error: ApiError) => void,
   *   onEnd: (error: ApiError | null) => void}} listeners `onEvent` hears the server's events, and
   *   `onError` what it could not do; `onEnd`, once, that no more will come, and why where it ends
   *   too soon
   */
  constructor({ onOpen, onEvent, onError, onEnd }) {
    this.onOpen = onOpen;
    this.onEvent = onEvent;
    this.onError = onError;
    this.onEnd = onEnd;
  }

  /**
   * Connect. What was said until then is sent first.
   * @param {object} session the settings
   */
  async open(session) {
    let socket;
    try {
      socket = await liveSocket(session);
    } catch (error) {
      this.#end(error);
      return;
    }
    if (this.#ended) {
      socket.close();
      return;
    }
    socket.onopen = () => {
      this.#socket = socket;
      for (const samples of this.#waiting.splice(0)) socket.send(samples);
      if (this.#finishing) this.finish();
      this.onOpen();
    };
    socket.onmessage = ({ data }) => this.#hear(JSON.parse(data));
    socket.onclose = ({ code }) => this.#closed(code);
  }

  /** @param {Int16Array} samples as the microphone gives them */
  send(samples) {
    if (this.#ended) return;
    if (this.#socket) this.#give(samples);
    else this.#waiting.push(samples);
  }

  /** No more will be said: `onEnd` follows when all of it is written down. */
  finish() {
    this.#finishing = true;
    this.#give(JSON.stringify({ type: "input_audio_buffer.commit", final: true }));
  }

  /** Wait for nothing more. */
  close() {
    this.#end(null);
    this.#socket?.close();
  }

  /** Nobody takes what is sent while the socket closes. */
  #give(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(message);
  }

  #hear(event) {
    if (this.#ended) return;
    if (event.type !== "error") {
      this.onEvent(event);
      return;
    }
    this.#error = new ApiError(event.error.message);
    this.onError(this.#error);
  }

  async #closed(code) {
    if (code === DONE && this.#finishing) this.#end(null);
    else if (this.#socket) this.#end(this.#error ?? new ApiError("The connection was lost."));
    else this.#end(await whyRefused());
  }

  #end(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#waiting = [];
    this.onEnd(error);
  }
}

/** Why a socket did not open: browsers do not tell. */
async function whyRefused() {
  try {
    const { live_places: places } = await info();
    return new ApiError(places ? NOT_OPENED : FULL);
  } catch (error) {
    return error;
  }
}
