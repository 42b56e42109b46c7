/* Records the microphone instead of a file, and shows words meanwhile. One dictation each recording. */

import { Listening } from "./listening.js";
import { ENDINGS, LiveSession, settings } from "./live_session.js";
import { LiveTranscript } from "./live_transcript.js";
import { exclusively, newId, write } from "./database.js";
import { Microphone, PIECES, newName } from "./microphone.js";
import { Speakers } from "./speakers.js";

const GOES_ON =
  "The recording goes on without words: stop it, and Transcribe writes all of it down.";
const STAYS = "What was written stays; Transcribe writes the whole recording.";
const COMES =
  "The recording goes on, and words come once the server takes a live session. Stop it, and Transcribe writes all of it down.";
// A first session is tried again after these, and a later one after a lost connection, which has no
// code, or after one that the server ended.
const REFUSALS = ["BUSY", "DRAINING"];
const LOSSES = ["", ...REFUSALS, ...ENDINGS];
const RETRY_MS = 2000; // at least; the server may ask for longer
const KEEP_MS = 5000; // after which words are stored again

export class Dictation {
  #microphone = new Microphone();
  #listening;
  #session = null;
  #heard = new LiveTranscript();
  #diarizes = false;
  #words = Promise.withResolvers(); // their end, with the error if that is too early
  #lost = null; // why there is no session, while another is being opened
  #wasOpen = false; // a session
  #wordsAt = 0; // seconds of the recording at which words came last
  #retry = 0;
  #state = "off"; // or starting, on, stopping
  #id = newId(); // of the record, of which the browser stores each second at once
  #pieces = []; // of samples that are not stored yet
  #stored = 0; // pieces of a second
  #storing = Promise.resolve();
  #keptAt = Date.now(); // when words were stored
  #released = Promise.withResolvers();

  /** `page` gets `onLost` (the microphone), `onFull` (the browser), `onResumed` (words), `onFailure`. */
  constructor(records, transcript, page) {
    this.records = records;
    this.transcript = transcript;
    this.page = page;
    this.#listening = new Listening(page.announce);
  }

  /** Whether the microphone is starting or on, or the last words are awaited. */
  get active() {
    return this.#state !== "off";
  }

  /** Whether words of the recording appear. */
  get isWriting() {
    return this.active && this.#session !== null;
  }

  /** Begin; with parameters (of `POST /`) words appear. Throws an Error if there is no microphone. */
  async start(parameters, diarizes) {
    this.#state = "starting";
    this.#diarizes = diarizes;
    try {
      await this.#microphone.start({ onPiece: this.#onPiece, onLost: this.page.onLost });
    } catch (error) {
      this.#state = "off";
      throw error;
    }
    this.#state = "on";
    // Another tab that finds the record waits until this one releases it, or is closed.
    exclusively(`work ${this.#id}`, () => this.#released.promise);
    const { rate } = this.#microphone;
    const about = { file: newName(), rate, bytes: 0, state: "recording", recordings: [] };
    this.#storing = this.records.add({ id: this.#id, ...about }, []);
    this.#listening.start(() => this.#microphone.seconds, this.#waiting);
    this.#listening.say(...(parameters ? ["Listening", "connecting"] : ["Recording"]));
    if (parameters) this.#open(parameters);
    else this.#words.resolve(null);
  }

  /** End, and wait for the last words; a second call ends the wait. Returns the record's id once. */
  async stop() {
    if (this.#state === "stopping") this.#session?.close();
    if (this.#state !== "on") return null;
    this.#state = "stopping";
    await this.#microphone.stop();
    this.#keepPieces();
    if (this.#session) this.#listening.finish(this.#diarizes ? "and who said what" : "");
    if (this.#lost) {
      clearTimeout(this.#retry);
      this.#words.resolve(this.#lost);
      this.#session.close();
    }
    this.#session?.finish();
    const error = await this.#words.promise;
    if (error) {
      this.page.onFailure(error, STAYS);
      this.#heard.breakOff(this.#microphone.seconds);
    }
    this.#listening.end();
    await this.#storing;
    const hasWords = this.#heard.ids.some((id) => this.#heard.blocksOf(id).length);
    if (this.#session && (hasWords || !error)) await this.#keepWords();
    await this.records.endRecording(this.#id);
    this.#released.resolve();
    this.#state = "off";
    return this.#id;
  }

  #onPiece = (samples) => {
    this.#listening.hear(samples);
    this.#session?.send(samples);
    this.#pieces.push(samples);
    if (this.#pieces.length === PIECES) this.#keepPieces();
  };

  #keepPieces() {
    const samples = new Blob(this.#pieces.splice(0));
    if (!samples.size && this.#stored) return; // the recording has others
    const piece = { id: this.#id, number: this.#stored++, samples };
    this.#storing = this.#storing.then(async () => {
      if ((await write([["pieces", piece]])) !== "stored") this.page.onFull();
    });
  }

  #keepWords() {
    this.#keptAt = Date.now();
    const about = { isLive: true, diarizes: this.#diarizes, seconds: this.#listening.delay };
    return this.records.finish(this.#id, this.#heard.answer(this.#microphone.seconds), about);
  }

  #waiting = () => {
    const since = this.#heard.openSince;
    return since === null ? 0 : this.#microphone.now - Math.max(since, this.#wordsAt);
  };

  /** Open a session for the recording from now on. */
  #open(parameters) {
    const start = this.#microphone.seconds;
    this.#session = new LiveSession(start, {
      onOpen: () => {
        if (this.#lost) {
          for (const id of this.#heard.breakOff(start)) this.transcript.forget(id);
          for (const id of this.#heard.ids) this.#show(id);
          this.#lost = null;
          this.page.onResumed();
          this.#listening.say("Listening", this.#wasOpen ? "connected again" : "");
        } else if (this.#state === "on") this.#listening.say("Listening");
        this.#wasOpen = true;
      },
      onEvent: (event) => this.#hear(event),
      onError: (error) => this.page.onFailure(error, ""),
      onEnd: (error) => {
        const isOn = error && this.#state === "on";
        const isPassing = (this.#wasOpen ? LOSSES : REFUSALS).includes(error?.code);
        if (isOn && isPassing) this.#tryAgain(parameters, error);
        else this.#words.resolve(error);
        if (!isOn || isPassing) return;
        this.#listening.say("Recording", "without words");
        this.page.onFailure(error, GOES_ON);
      },
    });
    this.#session.open(settings(parameters, this.#diarizes, this.#microphone.rate));
  }

  /** Open another session later, without speakers: it would label the same people anew. */
  #tryAgain(parameters, error) {
    if (!this.#lost) {
      this.#listening.say("Recording", "waiting for a live session");
      this.page.onFailure(error, COMES);
    }
    this.#lost = error;
    this.#diarizes &&= !this.#wasOpen;
    const pause = Math.max(RETRY_MS, 1000 * error.retryAfter);
    this.#retry = setTimeout(() => this.#open(parameters), pause);
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
    if (this.#state !== "on" || Date.now() < this.#keptAt + KEEP_MS) return;
    this.#keptAt = Date.now();
    this.#storing = this.#storing.then(() => this.#keepWords());
  }

  #show(id) {
    const spoken = this.#heard.labels.map((speaker, i) => ({ speaker, timestamp: [i, i] }));
    this.transcript.follow(id, this.#heard.blocksOf(id), new Speakers({ speakers: spoken }));
  }
}
