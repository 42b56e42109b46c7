/* Transcribes the records that wait. One file is sent at a time; the server may work on many jobs.
   Of several tabs the first does the work, and another goes on once that one is closed. */

import * as api from "./api.js";
import { exclusively } from "./database.js";
import { Progress } from "./progress.js";

const CHANNEL = "who-said-what work";
// Longer recordings are jobs, which go on if the connection breaks or the page is closed.
const LONG_BYTES = 2 ** 17; // about a minute of a voice message
const ENDED = ["succeeded", "failed", "cancelled"];
const PAUSE_MS = 1000;
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

  /** `page.onEnd` gets why a record has no answer, or the id of the record that has it. */
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
    const waiting = this.records.list.filter(({ state }) => state === "waiting").reverse();
    for (const { id } of waiting) this.watch(id);
  }

  /** Transcribe a record; if it has a transcript, another one gets the new one unless it `replaces`. */
  async add(id, parameters, diarizes, replaces = false) {
    const changes = { parameters, replaces, wantsSpeakers: diarizes, began: Date.now() };
    await this.records.change(id, { ...changes, state: "waiting", error: null });
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
    const { progress, controller: { signal } } = running;
    const send = () => {
      const isCancelled = new Promise((_, reject) => (signal.onabort = () => reject(signal.reason)));
      const turn = Promise.race([this.#upload, isCancelled]).then(() => this.#send(entry, running));
      this.#upload = Promise.allSettled([this.#upload, turn]);
      return turn;
    };
    const onLook = ({ progress: done }) => {
      if (done) progress.transcribed(done.done, done.total, entry.wantsSpeakers);
      else progress.say("Waiting for its turn on the server");
    };
    const onLost = () => progress.say("The server does not answer; trying again");
    let sent = entry.job ? { job: entry.job } : await send();
    while (!sent.answer) {
      try {
        return await follow(sent.job, { onLook, onLost, signal });
      } catch (error) {
        if (error.status !== 404) throw error;
        await this.records.change(entry.id, { job: null }); // the server has lost it
        sent = await send();
      }
    }
    return sent.answer;
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
      const job = isJob && (await createJob(files, parameters, listeners));
      if (!job) return { answer: await api.transcribe(files, parameters, { ...listeners, onMessage }) };
      await this.records.change(id, { job });
      return { job };
    } finally {
      running.isHeld = false;
    }
  }
}

/** The id of a job; null if the server has no room for one. */
const createJob = (...given) =>
  api.createJob(...given).then(
    ({ id }) => id,
    (error) => (NO_ROOM.includes(error.code) ? null : Promise.reject(error)),
  );

/**
 * The answer of a job. Rejects with ApiError if the job has failed, with an AbortError once `signal`
 * is aborted, which cancels the job. An unreachable or busy server is asked again: it may be restarting.
 */
async function follow(id, { onLook, onLost, signal }) {
  while (!signal.aborted) {
    const job = await api.job(id).catch((error) => {
      if (error.status && error.status < 500 && error.status !== 429) throw error;
      onLost();
    });
    if (job?.status === "succeeded") return job.answer;
    if (ENDED.includes(job?.status)) throw new api.ApiError(job.error?.message ?? "It was cancelled.");
    if (job) onLook(job);
    await new Promise((resolve) => {
      setTimeout(resolve, PAUSE_MS);
      signal.addEventListener("abort", resolve, { once: true });
    });
  }
  // The first cancels the job. It expires on the server in any case.
  for (let i = 0; i < 2; i++) await api.removeJob(id).catch(() => {});
  throw new DOMException("cancelled", "AbortError");
}
