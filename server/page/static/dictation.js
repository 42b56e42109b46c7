/* Speaking in place of a file: a recording, and its words while it is made. */

import { Listening } from "./listening.js";
import { ENDINGS, LiveSession } from "./live_session.js";
import { LiveTranscript } from "./live_transcript.js";
import { Microphone } from "./microphone.js";
import { RecentSamples } from "./recent_samples.js";
import { Speakers } from "./speakers.js";

/** @typedef {import("./transcript.js").Transcript} Transcript */

const GOES_ON =
  "The recording goes on without words: stop it, and Transcribe writes all of it down.";
const STAYS = "What was written stays; Transcribe hears the whole recording.";
const COMES_BACK =
  "The recording goes on, and words come again once the server can be reached. Stop it, and Transcribe writes all of it down.";
const COMES =
  "The recording goes on, and words come once the server takes a live session. Stop it, and Transcribe writes all of it down.";
// What is over after a while where no session has been opened so far, and so many attempts then.
const REFUSALS = ["BUSY", "DRAINING"];
const MOST_ATTEMPTS = 20;
// What a new session may mend: a lost connection, which has no code, and these.
const PASSING = ["", ...REFUSALS, ...ENDINGS];
// Between two attempts; it doubles until words come, and is no shorter than the server asks for.
const LEAST_PAUSE_MS = 2000;
const MOST_PAUSE_MS = 15_000;
const OPENS_MS = 20_000; // another attempt follows one that takes longer

export class Dictation {
  #microphone = new Microphone();
  #listening;
  /** @type {LiveSession | null} */
  #session = null;
  #heard = new LiveTranscript();
  #finds = false; // who speaks
  #recent = new RecentSamples();
  /** @type {Promise<Error | null>} that no more words come, and why too soon */
  #ended = Promise.resolve(null);
  /** @type {(error: Error | null) => void} */
  #end = () => {};
  /** @type {Error | null} why there is no session now, while another is tried for */
  #lost = null;
  #wasOpen = false; // a session
  #wordsAt = 0; // seconds of the recording at which words came last
  #attempts = 0; // after the first one
  #retry = 0;
  #pause = LEAST_PAUSE_MS;
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
    this.#session = this.#lost = null;
    this.#ended = Promise.resolve(null);
    this.#wasOpen = false;
    this.#attempts = 0;
    this.#pause = LEAST_PAUSE_MS;
    this.#recent = new RecentSamples();
    this.#finds = settings?.include.length > 1;
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
    if (settings) this.#begin(settings);
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
    this.#recent.push(samples);
    this.#session?.send(samples);
  };

  #waiting = () => {
    const since = this.#heard.openSince;
    return since === null ? 0 : this.#microphone.now - Math.max(since, this.#wordsAt);
  };

  #begin(settings) {
    this.#listening.say("Listening", "connecting");
    this.#ended = new Promise((resolve) => {
      this.#end = resolve;
    });
    this.#open(settings, { start: 0, pieces: [] });
  }

  /** Open a session, which hears first what was said before. */
  #open(settings, heard) {
    this.#session = new LiveSession({
      onOpen: () => {
        if (this.#lost) this.#resume(heard.start);
        else if (this.#state === "on") this.#listening.say("Listening");
        this.#wasOpen = true;
      },
      onEvent: (event) => this.#hear(event),
      onError: (error) => this.onFailure(error, ""),
      onEnd: (error) => {
        if (this.#state === "on" && this.#mayPass(error)) this.#tryAgain(settings, error);
        else this.#over(error);
      },
    });
    this.#session.open(settings, heard);
  }

  /** Whether another attempt makes sense after this error. */
  #mayPass(error) {
    if (!PASSING.includes(error?.code)) return false;
    if (this.#wasOpen) return true;
    return (this.#lost || REFUSALS.includes(error.code)) && this.#attempts < MOST_ATTEMPTS;
  }

  /**
   * Open a session later. After one that was lost it has words alone: it would call the same people
   * something else.
   */
  #tryAgain(settings, error) {
    if (!this.#lost) {
      this.#lost = error;
      const waitsFor = this.#wasOpen ? "trying to connect again" : "waiting for a live session";
      this.#listening.say("Recording", waitsFor);
      this.onFailure(error, this.#wasOpen ? COMES_BACK : COMES);
    }
    if (this.#wasOpen) {
      this.#finds = false;
      settings = { ...settings, include: settings.include.slice(0, 1) };
    }
    this.#attempts += 1;
    this.#retry = setTimeout(
      () => {
        this.#open(settings, this.#recent.from(this.#heard.writtenUntil));
        this.#session.openWithin(OPENS_MS);
      },
      Math.max(this.#pause, 1000 * error.retryAfter),
    );
    this.#pause = Math.min(2 * this.#pause, MOST_PAUSE_MS);
  }

  #resume(start) {
    for (const id of this.#heard.breakOff(start)) this.transcript.forget(id);
    for (const id of this.#heard.ids) this.#show(id);
    this.#lost = null;
    this.#listening.say("Listening", this.#wasOpen ? "connected again" : "");
    this.onResumed();
  }

  /** Nobody waits for a server that is gone. */
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
    // Every line says whose it is, or that it is unknown, once anybody is known.
    const isFirst = this.#heard.labels.length > 0 && !before;
    for (const id of isFirst ? this.#heard.ids : [changed]) this.#show(id);
    if (!event.type.endsWith(".words")) return;
    this.#pause = LEAST_PAUSE_MS;
    this.#wordsAt = this.#microphone.now;
    this.#listening.appeared(this.#wordsAt, event.words);
  }

  /** @param {string} id an item's */
  #show(id) {
    const speakers = new Speakers({ speakers: this.#heard.labels.map(asSpoken) });
    this.transcript.follow(id, this.#heard.blocksOf(id), speakers);
  }
}

/** A speaker's entry in an answer, in this order. */
const asSpoken = (speaker, place) => ({ speaker, timestamp: [place, place] });
