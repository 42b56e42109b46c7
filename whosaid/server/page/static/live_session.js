/* A live session: sends sound while it is recorded, and receives the server's events. */

import { ApiError, liveSecret, liveSocket } from "./api.js";

const TRANSCRIPTION = "item.input_audio_transcription";
const DONE = 1000; // WebSocket's status of a normal end
const FAILED = 1011; // and of a server that cannot go on
const NOT_OPENED = "No live session could be opened; a proxy may not allow WebSockets.";
const NOTHING_SAID = "The connection was lost.";

// The server announces the end by one of these errors, completes the received audio, and refuses more
// with TAKES_NO_MORE.
export const ENDINGS = ["DRAINING", "session_expired", "session_idle"];
const TAKES_NO_MORE = "session_ending";

/**
 * A session's settings for a recording's parameters, as far as live sessions support them.
 * @param {any} parameters of `POST /`
 * @param {boolean} speakers whether to find speakers
 * @param {number} rate samples a second
 */
export function settings({ language, prompt, hotwords }, speakers, rate) {
  const include = [`${TRANSCRIPTION}.words`];
  if (speakers) include.push(`${TRANSCRIPTION}.segments`);
  const transcription = { language, prompt, keywords: hotwords };
  const format = { type: "audio/pcm", rate };
  return { type: "transcription", include, audio: { input: { format, transcription } } };
}

export class LiveSession {
  #start;
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {Int16Array[]} recorded before the socket was open */
  #waiting = [];
  #finishing = false;
  #ended = false;
  /** @type {ApiError | null} the last failure */
  #error = null;
  /** @type {ApiError | null} the reason for which the server ends the session */
  #ending = null;

  /**
   * @param {number} start seconds of the recording at which the session begins
   * @param {{onOpen: () => void, onEvent: (event: any) => void, onError: (error: ApiError) => void,
   *   onEnd: (error: ApiError | null) => void}} listeners `onEvent` gets the server's events, in
   *   the recording's times, and `onError` its failures; `onEnd` is called once, when nothing more
   *   will come, with the reason if that is too soon
   */
  constructor(start, { onOpen, onEvent, onError, onEnd }) {
    this.#start = start;
    this.onOpen = onOpen;
    this.onEvent = onEvent;
    this.onError = onError;
    this.onEnd = onEnd;
  }

  /**
   * Connect. What is recorded meanwhile is sent first.
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
    socket.onopen = () => {
      if (this.#ended) {
        socket.close();
        return;
      }
      this.#socket = socket;
      for (const samples of this.#waiting.splice(0)) socket.send(samples);
      if (this.#finishing) this.finish();
      this.onOpen();
    };
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => this.#closed(code, session);
  }

  /** @param {Int16Array} samples from the microphone */
  send(samples) {
    if (this.#ended) return;
    if (this.#socket) this.#give(samples);
    else this.#waiting.push(samples);
  }

  /** End the audio; `onEnd` is called when all of it is transcribed. */
  finish() {
    this.#finishing = true;
    this.#give(JSON.stringify({ type: "input_audio_buffer.commit", final: true }));
  }

  /** Close without waiting. */
  close() {
    this.#end(null);
    this.#socket?.close();
  }

  /** A session that is ending takes nothing. */
  #give(message) {
    if (this.#ending || this.#socket?.readyState !== WebSocket.OPEN) return;
    this.#socket.send(message);
  }

  #receive(event) {
    if (this.#ended) return;
    if (event.type !== "error") {
      this.onEvent(later(event, this.#start));
      return;
    }
    const error = new ApiError(event.error.message);
    if (error.code === TAKES_NO_MORE) return;
    if (ENDINGS.includes(error.code)) this.#ending = error;
    this.#error = error;
    this.onError(error);
  }

  async #closed(code, session) {
    if (code === DONE && this.#finishing) this.#end(null);
    else if (this.#socket) this.#end(this.#reason(code));
    else this.#end(await whyRefused(session));
  }

  /** The server's reason; earlier failures did not end the session. */
  #reason(code) {
    const given = this.#ending ?? (code === FAILED ? this.#error : null);
    return given ?? new ApiError(NOTHING_SAID);
  }

  #end(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#waiting = [];
    this.onEnd(error);
  }
}

/** An event of a session that begins so many seconds after the recording, in its times. */
function later(event, seconds) {
  const moved = { ...event, words: event.words?.map((word) => later(word, seconds)) };
  for (const name of ["start", "end"])
    if (name in event) moved[name] = Number((event[name] + seconds).toFixed(2));
  for (const name of ["audio_start_ms", "audio_end_ms"])
    if (name in event) moved[name] = event[name] + 1000 * seconds;
  return moved;
}

/** Why a socket did not open: browsers hide it, so request another secret, which is refused alike. */
async function whyRefused(session) {
  try {
    await liveSecret(session);
    return new ApiError(NOT_OPENED);
  } catch (error) {
    return error;
  }
}
