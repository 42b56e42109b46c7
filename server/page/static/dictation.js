/* Speaking in place of a file: a recording, and its words while it is made. */

import { Listening } from "./listening.js";
import { LiveSession } from "./live_session.js";
import { LiveTranscript } from "./live_transcript.js";
import { Microphone } from "./microphone.js";
import { Speakers } from "./speakers.js";

/** @typedef {import("./transcript.js").Transcript} Transcript */

const GOES_ON =
  "The recording goes on without words: stop it, and Transcribe writes all of it down.";
const STAYS = "What was written stays; Transcribe hears the whole recording again.";

export class Dictation {
  #microphone = new Microphone();
  #listening;
  /** @type {LiveSession | null} */
  #session = null;
  #heard = new LiveTranscript();
  #finds = false; // who speaks
  /** @type {Promise<Error | null>} that the session has ended, and why too soon */
  #ended = Promise.resolve(null);
  /** @type {"off" | "starting" | "on" | "stopping"} */
  #state = "off";

  /**
   * @param {Transcript} transcript where words appear
   * @param {{announce: (text: string) => void, onLost: () => void,
   *   onFailure: (error: Error, consequence: string) => void}} listeners `onLost`: the microphone
   *   was taken away; `onFailure`: something could not be done
   */
  constructor(transcript, { announce, onLost, onFailure }) {
    this.transcript = transcript;
    this.onLost = onLost;
    this.onFailure = onFailure;
    this.#listening = new Listening(announce);
  }

  /** Whether the microphone is on, or about to be, or its last words are waited for. */
  get active() {
    return this.#state !== "off";
  }

  /**
   * Begin; with settings of a live session its words appear. Throws an Error that says why there is
   * no microphone.
   * @param {{include: string[]} | null} settings
   */
  async start(settings) {
    this.#state = "starting";
    this.#session = null;
    this.#finds = settings?.include.length > 1;
    this.#heard = new LiveTranscript();
    try {
      await this.#microphone.start({ onPiece: this.#onPiece, onLost: this.onLost });
    } catch (error) {
      this.#state = "off";
      throw error;
    }
    this.#state = "on";
    this.#listening.start(() => this.#microphone.seconds);
    if (settings) this.#open(settings);
    else this.#listening.say("Recording");
  }

  /**
   * End, and wait for the last words: the recording, its transcript in the form of an answer (null
   * where none was to be had), and the words' median delay in seconds. Asked again it waits for
   * nothing more, and returns null, as it does where it has not begun.
   */
  async stop() {
    if (this.#state === "stopping") this.#session?.close();
    if (this.#state !== "on") return null;
    this.#state = "stopping";
    const recording = await this.#microphone.stop();
    if (this.#session) this.#listening.finish(this.#finds ? "and who said what" : "");
    this.#session?.finish();
    const error = await this.#ended;
    this.#listening.end();
    this.#state = "off";
    const wasHeard = this.#session && !(error && this.#heard.isEmpty);
    return {
      recording,
      answer: wasHeard ? this.#heard.answer(this.#microphone.seconds) : null,
      delay: this.#listening.delay,
    };
  }

  #onPiece = (samples) => {
    this.#listening.hear(samples);
    this.#session?.send(samples);
  };

  #open(settings) {
    this.#listening.say("Listening", "connecting");
    this.#ended = new Promise((resolve) => {
      this.#session = new LiveSession({
        onOpen: () => this.#state === "on" && this.#listening.say("Listening"),
        onEvent: (event) => this.#hear(event),
        onError: (error) => this.onFailure(error, ""),
        onEnd: (error) => {
          if (error) this.#fail(error);
          resolve(error);
        },
      });
    });
    this.#session.open(settings);
  }

  #fail(error) {
    if (this.#state === "on") this.#listening.say("Recording", "without words");
    this.onFailure(error, this.#state === "on" ? GOES_ON : STAYS);
  }

  #hear(event) {
    if (event.type === "session.cadence") {
      const detail = `the server is busy: new words about every ${Math.round(event.seconds)} s`;
      this.#listening.say("Listening", event.seconds > 2 ? detail : "");
      return;
    }
    const before = this.#heard.labels.length;
    const changed = this.#heard.hear(event);
    if (!changed) return;
    const { labels } = this.#heard;
    const speakers = new Speakers({ speakers: labels.map(asSpoken) });
    // Every line says whose it is, or that it is unknown, once anybody is known.
    const parts = labels.length > 0 && !before ? this.#heard.ids : [changed];
    for (const id of parts) this.transcript.follow(id, this.#heard.blocksOf(id), speakers);
    if (event.type.endsWith(".words"))
      this.#listening.appeared(this.#microphone.now, event.words);
  }
}

/** A speaker's entry in an answer, in this order. */
const asSpoken = (speaker, place) => ({ speaker, timestamp: [place, place] });
