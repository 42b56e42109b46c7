/* A live session: sound goes to the server while it is made, and what was heard comes back. */

import { ApiError, liveSecret, liveSocket } from "./api.js";
import { RATE } from "./microphone.js";

const TRANSCRIPTION = "item.input_audio_transcription";
const DONE = 1000; // WebSocket's status of what ends as it should
const FAILED = 1011; // and of a server that cannot go on
const NOT_OPENED = "No live session was opened; something on the way may take no WebSockets.";
const NOTHING_SAID = "The connection was lost.";

// Told first; then the server completes what it heard, and answers all else with TAKES_NO_MORE.
export const ENDINGS = ["DRAINING", "session_expired", "session_idle"];
const TAKES_NO_MORE = "session_ending";

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
  #start = 0; // seconds of the recording at which it begins
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {Int16Array[]} what was said before the socket was open */
  #waiting = [];
  #finishing = false;
  #ended = false;
  /** @type {ApiError | null} what could not be done last */
  #error = null;
  /** @type {ApiError | null} why the server ends it */
  #ending = null;

  /**
   * @param {{onOpen: () => void, onEvent: (event: any) => void, onError: (error: ApiError) => void,
   *   onEnd: (error: ApiError | null) => void}} listeners `onEvent` hears the server's events, in
   *   the recording's times, and `onError` what it could not do; `onEnd`, once, that no more will
   *   come, and why where it ends too soon
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
   * @param {{start: number, pieces: Int16Array[]}} heard what was recorded so far, from `start`
   *   seconds on
   */
  async open(session, { start, pieces }) {
    let socket;
    this.#start = start;
    this.#waiting.push(...pieces);
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
    socket.onmessage = ({ data }) => this.#hear(JSON.parse(data));
    socket.onclose = ({ code }) => this.#closed(code, session);
  }

  /** Fail where it is not open by then. @param {number} ms */
  openWithin(ms) {
    setTimeout(() => this.#socket || this.#end(new ApiError(NOT_OPENED)), ms);
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

  /** Nobody takes what is sent while the session ends. */
  #give(message) {
    if (this.#ending || this.#socket?.readyState !== WebSocket.OPEN) return;
    this.#socket.send(message);
  }

  #hear(event) {
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

  /** What the server said of its end; other errors, before, have ended nothing. */
  #reason(code) {
    const said = this.#ending ?? (code === FAILED ? this.#error : null);
    return said ?? new ApiError(NOTHING_SAID);
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

/** Why a socket did not open: browsers do not tell, but another secret is refused as it was. */
async function whyRefused(session) {
  try {
    await liveSecret(session);
    return new ApiError(NOT_OPENED);
  } catch (error) {
    return error;
  }
}
