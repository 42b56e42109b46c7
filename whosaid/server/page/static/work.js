/* Transcribes the records that wait. One file is sent at a time; the server may work on many jobs.
   Of several tabs the first does the work, and another goes on once that one is closed. */

import * as api from "./api.js";
import { exclusively } from "./database.js";
import { clock } from "./format.js";
import { Progress } from "./progress.js";

const CHANNEL = "who-said-what work";
// Longer recordings are jobs, which go on if the connection breaks or the page is closed.
const LONG_BYTES = 2 ** 17; // about a minute of a voice message
const ENDED = ["succeeded", "failed", "cancelled"];
const PAUSE_MS = 1000;
const PASSING = [401, 429, 502, 503]; // after which a recording is sent again
const AGAIN_S = 5; // later, unless the server says when
const SPENT = "QUOTA_EXCEEDED";
// The server accepts the recording, but no job; it may have been started anew.
const NO_ROOM = ["JOBS_DISABLED", "JOBS_FULL", "STORAGE_FAILED"];
const LOST = "This browser cannot read the recording: choose the file again.";

export class Work {
  /** By the record's id: its progress, the controller that cancels it, and whether it `isHeld`: ends
   * with its connection. */
  #running = new Map();
  #upload = Promise.resolve();
  #channel = new BroadcastChannel(CHANNEL);
  #hasJobs = false;
  stop = null; // the refusal of the key, or for its quota, because of which nothing is sent

  /** `page.onEnd` gets an error or the id of the record that has the answer, `onStop` a new `stop`. */
  constructor(records, page) {
    this.records = records;
    this.page = page;
    // Another tab tells of its progress, or cancels.
    this.#channel.onmessage = ({ data: { id, isCancelled, ...told } }) => {
      const running = this.#running.get(id);
      if (!running) return;
      if (isCancelled) running.controller.abort();
      Object.assign(running.progress, told);
      page.onProgress(id);
    };
  }

  /** Go on with what waits. `jobs`: whether the server has them. */
  resume({ jobs }) {
    this.#hasJobs = jobs;
    this.stop = null;
    const waiting = this.records.list.filter(({ state }) => state === "waiting").reverse();
    for (const { id } of waiting) this.watch(id);
  }

  /** Transcribe a record; if it has a transcript, another one gets the new one unless it `replaces`. */
  async add(id, parameters, diarizes, replaces = false) {
    const changes = { parameters, replaces, wantsSpeakers: diarizes, began: Date.now() };
    await this.records.change(id, { ...changes, state: "waiting", error: null });
    this.stop = null;
    this.watch(id);
  }

  cancel(id) {
    this.#running.get(id)?.controller.abort();
    this.#channel.postMessage({ id, isCancelled: true });
  }

  progressOf = (id) => this.#running.get(id)?.progress;

  /** Whether a reload would begin some work anew. */
  get isHeld() {
    return [...this.#running.values()].some(({ isHeld }) => isHeld);
  }

  /** Transcribe a record that waits, unless another tab does. */
  watch(id) {
    if (this.#running.has(id)) return;
    const progress = new Progress(() => {
      const { stage, detail, share } = progress;
      this.#channel.postMessage({ id, stage, detail, share });
      this.page.onProgress(id);
    });
    const running = { progress, controller: new AbortController(), isHeld: false };
    this.#running.set(id, running);
    exclusively(`work ${id}`, async () => {
      const entry = await this.records.fresh(id);
      const end = entry?.state === "waiting" ? await this.#finish(entry, running) : {};
      this.#running.delete(id);
      this.page.onEnd(id, end);
    });
  }

  async #finish(entry, running) {
    const over = { state: entry.answerBytes ? "done" : "kept", job: null, parameters: null };
    try {
      const answer = await this.#answer(entry, running);
      return { made: await this.#keep(entry, answer, over) };
    } catch (error) {
      const { message, code } = error; // what still holds when the record is opened later
      const hasFailed = error.name !== "AbortError" && !entry.answerBytes;
      const failed = { error: { message, code }, state: "failed" };
      // It waits on for a key.
      if (error.status !== 401) await this.records.change(entry.id, { ...over, ...(hasFailed && failed) });
      return { error };
    }
  }

  async #keep(entry, answer, over) {
    const { id, job } = (await this.records.fresh(entry.id)) ?? entry;
    const seconds = (Date.now() - entry.began) / 1000;
    const about = { state: "done", seconds, diarizes: entry.wantsSpeakers, isLive: false };
    let made = id;
    if (entry.answerBytes && !entry.replaces) {
      const { file, bytes, modified, recordings, tracks, starts } = entry;
      const copy = { file, bytes, modified, recordings, tracks, starts, state: "kept" };
      made = (await this.records.add(copy, [])).id;
      await this.records.change(id, over);
    }
    await this.records.finish(made, answer, { ...over, ...about });
    const entryMade = this.records.get(made);
    if (job && entryMade && !this.records.isUnsaved(entryMade)) await api.removeJob(job).catch(() => {});
    return made;
  }

  /** The answer to a recording: of its job, if it has one, which a reload finds again. */
  async #answer(entry, running) {
    const { signal } = running.controller;
    const send = () => {
      const isCancelled = new Promise((_, reject) => (signal.onabort = () => reject(signal.reason)));
      const turn = Promise.race([this.#upload, isCancelled]).then(() => this.#insist(entry, running));
      this.#upload = Promise.allSettled([this.#upload, turn]);
      return turn;
    };
    let sent = entry.job ? { job: entry.job } : await send();
    while (!sent.answer) {
      try {
        return await this.#follow(sent.job, entry, running);
      } catch (error) {
        // The server has lost the job, or other jobs have used the quota since it was accepted.
        if (error.status !== 404 && error.code !== SPENT) throw error;
        await this.records.change(entry.id, { job: null });
        sent = await send();
      }
    }
    return sent.answer;
  }

  /**
   * The answer of a job. Rejects with ApiError if the job has failed, with an AbortError once it is
   * cancelled. An unreachable or busy server is asked again: it may be restarting.
   */
  async #follow(id, { wantsSpeakers }, { progress, controller: { signal } }) {
    while (!signal.aborted) {
      const job = await api.job(id).catch((error) => {
        if (error.status && error.status < 500 && error.status !== 429) throw error;
        progress.say("The server does not answer; trying again");
      });
      if (job?.status === "succeeded") return job.answer;
      if (ENDED.includes(job?.status)) throw new api.ApiError(job.error?.message ?? "It was cancelled.");
      if (job?.progress) progress.transcribed(job.progress.done, job.progress.total, wantsSpeakers);
      else if (job) progress.say("Waiting for its turn on the server");
      await pause(signal);
    }
    // The first cancels the job. It expires on the server in any case.
    for (let i = 0; i < 2; i++) await api.removeJob(id).catch(() => {});
    return signal.throwIfAborted();
  }

  /** Send a recording, and again while the server would refuse any. The others wait behind it. */
  async #insist(entry, running) {
    for (;;) {
      try {
        return await this.#send(entry, running);
      } catch (error) {
        const isAway = error.status === 0 && running.progress.share === 0; // nothing of it was sent
        const isPassing = isAway || PASSING.includes(error.status);
        if (!isPassing || error.code === "UNAVAILABLE") throw error;
        await this.#pause(error, running).finally(() => (this.stop = null));
      }
    }
  }

  /** Wait as the server says; for a key, until there is one. */
  async #pause(error, { progress, controller: { signal } }) {
    const isLocked = error.status === 401;
    const end = Date.now() + 1000 * (isLocked ? Infinity : error.retryAfter || AGAIN_S);
    error.wait = isLocked ? "" : `Recordings wait until ${new Date(end).toLocaleTimeString()}.`;
    const isStop = isLocked || error.code === SPENT;
    if (isStop) this.page.onStop((this.stop = error));
    while (Date.now() < end && (!isStop || this.stop)) {
      const again = isLocked ? "" : ` · trying again in ${clock((end - Date.now()) / 1000 + 1)}`;
      progress.say("Waiting for the server", error.message.replace(/[.]$/, "") + again);
      await pause(signal);
      signal.throwIfAborted();
    }
  }

  /** Send a recording; returns the answer, or the job that makes it. */
  async #send({ id, bytes, parameters, wantsSpeakers, ...entry }, running) {
    const { progress, controller } = running;
    const files = await this.records.filesOf(entry);
    // A folder cannot be read, nor a file that was moved.
    const read = await Promise.all(files.map((file) => file.slice(0, 1).arrayBuffer())).catch(() => []);
    controller.signal.throwIfAborted();
    if (!read.length) throw new Error(LOST);
    const listeners = { onSent: (...sent) => progress.sent(...sent), signal: controller.signal };
    const onMessage = (message) => {
      if (message.type === "decoded") progress.decoded(message.duration);
      if (message.type === "speakers")
        progress.say("All is written down; working out who said what", "", message.share);
      if (message.type !== "progress") return;
      progress.transcribed(message.done, message.total, wantsSpeakers);
      progress.chunks.push(...message.chunks);
      this.page.onText(id, message.chunks);
    };
    progress.sent(0, bytes);
    running.isHeld = true; // also until the whole file is sent
    try {
      const isJob = this.#hasJobs && bytes > LONG_BYTES;
      const orNone = (error) => (NO_ROOM.includes(error.code) ? null : Promise.reject(error));
      const job = isJob && (await api.createJob(files, parameters, listeners).catch(orNone));
      if (!job) return { answer: await api.transcribe(files, parameters, { ...listeners, onMessage }) };
      await this.records.change(id, { job });
      return { job };
    } finally {
      running.isHeld = false;
    }
  }
}

const pause = (signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, PAUSE_MS);
    signal.addEventListener("abort", resolve, { once: true });
  });
