/* Records the microphone instead of a file, and shows words meanwhile. */

import { Listening } from "./listening.js";
import { ENDINGS, LiveSession, settings } from "./live_session.js";
import { LiveTranscript } from "./live_transcript.js";
import { Microphone } from "./microphone.js";
import { Speakers } from "./speakers.js";

/** @typedef {import("./transcript.js").Transcript} Transcript */

const GOES_ON =
  "The recording goes on without words: stop it, and Transcribe writes all of it down.";
const STAYS = "What was written stays; Transcribe hears the whole recording.";
const COMES =
  "The recording goes on, and words come once the server takes a live session. Stop it, and Transcribe writes all of it down.";
// A first session is tried again after these, and a later one after a lost connection, which has no
// code, or after one that the server ended.
const REFUSALS = ["BUSY", "DRAINING"];
const LOSSES = ["", ...REFUSALS, ...ENDINGS];
const RETRY_MS = 2000; // at least; the server may ask for longer

export class Dictation {
  #microphone = new Microphone();
  #listening;
  /** @type {LiveSession | null} */
  #session = null;
  #heard = new LiveTranscript();
  #diarizes = false;
  /** @type {Promise<Error | null>} the end of words, with the error that ended them early */
  #ended = Promise.resolve(null);
  /** @type {(error: Error | null) => void} */
  #end = () => {};
  /** @type {Error | null} why there is no session, while another is being opened */
  #lost = null;
  #wasOpen = false; // a session
  #wordsAt = 0; // seconds of the recording at which words came last
  #retry = 0;
  /** @type {"off" | "starting" | "on" | "stopping"} */
  #state = "off";

  /**
   * @param {Transcript} transcript where words appear
   * @param {{announce: (text: string) => void, onLost: () => void, onResumed: () => void,
   *   onFailure: (error: Error, consequence: string) => void}} listeners `onLost`: the microphone
   *   was taken away; `onFailure`: something could not be done; `onResumed`: words come again
   */
  constructor(transcript, { announce, onLost, onResumed, onFailure }) {
    this.transcript = transcript;
    this.onLost = onLost;
    this.onResumed = onResumed;
    this.onFailure = onFailure;
    this.#listening = new Listening(announce);
  }

  /** Whether the microphone is starting or on, or the last words are awaited. */
  get active() {
    return this.#state !== "off";
  }

  /**
   * Begin; with parameters (those of `POST /`) words appear. Throws an Error that says why there is
   * no microphone.
   * @param {boolean} diarizes whether to find speakers
   */
  async start(parameters, diarizes) {
    this.#state = "starting";
    this.#session = this.#lost = null;
    this.#ended = Promise.resolve(null);
    this.#wasOpen = false;
    this.#diarizes = diarizes;
    this.#heard = new LiveTranscript();
    try {
      await this.#microphone.start({ onPiece: this.#onPiece, onLost: this.onLost });
    } catch (error) {
      this.#state = "off";
      throw error;
    }
    this.#state = "on";
    this.#wordsAt = 0;
    this.#listening.start(() => this.#microphone.seconds, this.#waiting);
    if (parameters) this.#begin(parameters);
    else this.#listening.say("Recording");
  }

  /**
   * End, and wait for the last words. Returns the recording, its transcript in the form of an answer
   * (null without words), and the words' median delay in seconds. A second call waits for nothing
   * more and returns null, as does a call before the start.
   */
  async stop() {
    if (this.#state === "stopping") this.#session?.close();
    if (this.#state !== "on") return null;
    this.#state = "stopping";
    const recording = await this.#microphone.stop();
    if (this.#session) this.#listening.finish(this.#diarizes ? "and who said what" : "");
    if (this.#lost) this.#giveUp();
    this.#session?.finish();
    const error = await this.#ended;
    if (error) {
      this.onFailure(error, STAYS);
      this.#heard.breakOff(this.#microphone.seconds);
    }
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

  #waiting = () => {
    const since = this.#heard.openSince;
    return since === null ? 0 : this.#microphone.now - Math.max(since, this.#wordsAt);
  };

  #begin(parameters) {
    this.#listening.say("Listening", "connecting");
    this.#ended = new Promise((resolve) => {
      this.#end = resolve;
    });
    this.#open(parameters);
  }

  /** Open a session for the recording from now on. */
  #open(parameters) {
    const start = this.#microphone.seconds;
    this.#session = new LiveSession(start, {
      onOpen: () => {
        if (this.#lost) this.#resume(start);
        else if (this.#state === "on") this.#listening.say("Listening");
        this.#wasOpen = true;
      },
      onEvent: (event) => this.#hear(event),
      onError: (error) => this.onFailure(error, ""),
      onEnd: (error) => {
        const passing = this.#wasOpen ? LOSSES : REFUSALS;
        if (this.#state === "on" && passing.includes(error?.code)) this.#tryAgain(parameters, error);
        else this.#over(error);
      },
    });
    this.#session.open(settings(parameters, this.#diarizes, this.#microphone.rate));
  }

  /** Open another session later, without speakers: it would label the same people anew. */
  #tryAgain(parameters, error) {
    if (!this.#lost) {
      this.#listening.say("Recording", "waiting for a live session");
      this.onFailure(error, COMES);
    }
    this.#lost = error;
    this.#diarizes &&= !this.#wasOpen;
    const pause = Math.max(RETRY_MS, 1000 * error.retryAfter);
    this.#retry = setTimeout(() => this.#open(parameters), pause);
  }

  #resume(start) {
    for (const id of this.#heard.breakOff(start)) this.transcript.forget(id);
    for (const id of this.#heard.ids) this.#show(id);
    this.#lost = null;
    this.#listening.say("Listening", this.#wasOpen ? "connected again" : "");
    this.onResumed();
  }

  /** Stop waiting for another session. */
  #giveUp() {
    clearTimeout(this.#retry);
    this.#end(this.#lost);
    this.#session.close();
  }

  #over(error) {
    if (error && this.#state === "on") {
      this.#listening.say("Recording", "without words");
      this.onFailure(error, GOES_ON);
    }
    this.#end(error);
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
    // Once any speaker is known, every line has a speaker or "unknown".
    const isFirst = this.#heard.labels.length > 0 && !before;
    for (const id of isFirst ? this.#heard.ids : [changed]) this.#show(id);
    if (!event.type.endsWith(".words")) return;
    this.#wordsAt = this.#microphone.now;
    this.#listening.appeared(this.#wordsAt, event.words);
  }

  /** @param {string} id of an item */
  #show(id) {
    const speakers = new Speakers({ speakers: this.#heard.labels.map(asSpoken) });
    this.transcript.follow(id, this.#heard.blocksOf(id), speakers);
  }
}

/** A speaker's entry in an answer, in this order. */
const asSpoken = (speaker, place) => ({ speaker, timestamp: [place, place] });
