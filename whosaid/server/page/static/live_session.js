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

/** A session's settings for parameters of `POST /`, as far as live sessions support them. */
export function settings({ language, prompt, hotwords }, speakers, rate) {
  const include = [`${TRANSCRIPTION}.words`];
  if (speakers) include.push(`${TRANSCRIPTION}.segments`);
  const transcription = { language, prompt, keywords: hotwords };
  const format = { type: "audio/pcm", rate };
  return { type: "transcription", include, audio: { input: { format, transcription } } };
}

export class LiveSession {
  #start;
  #socket = null; // once it is open
  #waiting = []; // what is to be sent then
  #isFinishing = false;
  #isOver = false;
  #error = null; // the last failure
  #ending = null; // the reason for which the server ends the session

  /** `onEvent` gets events in the recording's times; `onEnd` is called once, with an error if too soon. */
  constructor(start, listeners) {
    this.#start = start;
    this.listeners = listeners;
  }

  /** Connect, with these settings. What is recorded meanwhile is sent first. */
  async open(session) {
    let socket;
    try {
      socket = await liveSocket(session);
    } catch (error) {
      this.#end(error);
      return;
    }
    socket.onopen = () => {
      if (this.#isOver) {
        socket.close();
        return;
      }
      this.#socket = socket;
      for (const message of this.#waiting.splice(0)) socket.send(message);
      this.listeners.onOpen();
    };
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => this.#closed(code, session);
  }

  /** Send samples, or JSON. A session that is ending takes nothing. */
  send(message) {
    if (this.#isOver || this.#ending) return;
    if (!this.#socket) this.#waiting.push(message);
    else if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(message);
  }

  /** End the audio; `onEnd` is called when all of it is transcribed. */
  finish() {
    this.#isFinishing = true;
    this.send(JSON.stringify({ type: "input_audio_buffer.commit", final: true }));
  }

  close() {
    this.#end(null);
    this.#socket?.close();
  }

  #receive(event) {
    if (this.#isOver) return;
    if (event.type !== "error") {
      this.listeners.onEvent(later(event, this.#start));
      return;
    }
    const error = new ApiError(event.error.message);
    if (error.code === TAKES_NO_MORE) return;
    if (ENDINGS.includes(error.code)) this.#ending = error;
    this.#error = error;
    this.listeners.onError(error);
  }

  async #closed(code, session) {
    if (code === DONE && this.#isFinishing) this.#end(null);
    else if (!this.#socket) this.#end(await whyRefused(session));
    else {
      // Failures before the last one did not end the session.
      const reason = this.#ending ?? (code === FAILED ? this.#error : null);
      this.#end(reason ?? new ApiError(NOTHING_SAID));
    }
  }

  #end(error) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#waiting = [];
    this.listeners.onEnd(error);
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
const whyRefused = (session) =>
  liveSecret(session).then(
    () => new ApiError(NOT_OPENED),
    (error) => error,
  );
