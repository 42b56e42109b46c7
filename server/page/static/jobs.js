/* Long recordings as jobs of the server: which one runs outlives the page, so that a reload, or a
   connection that breaks, loses nothing. */

import * as api from "./api.js";

const NAME = "job";
const ENDED = ["succeeded", "failed", "cancelled"];
const PAUSE_MS = 1000;
// Longer recordings are jobs: about five minutes of MP3.
export const LONG_BYTES = 5 * 2 ** 20;

/**
 * @typedef {object} Kept a job that was begun here
 * @property {string} id
 * @property {string} file the recording's name
 * @property {number} bytes its size
 * @property {boolean} diarizes whether speakers were asked for
 * @property {number} began when, in milliseconds since 1970
 */

/**
 * Whether the browser had room for it.
 * @param {Kept} job
 */
export function keepJob(job) {
  try {
    localStorage.setItem(NAME, JSON.stringify(job));
    return true;
  } catch {
    return false;
  }
}

/** Of this id alone: another tab may have begun another. @param {string} id */
export function forgetJob(id) {
  if (keptJob()?.id === id) localStorage.removeItem(NAME);
}

/** @returns {Kept | null} */
export function keptJob() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "null");
  } catch {
    return null;
  }
}

/**
 * The answer of a job, which expires on the server: another tab may follow it, too. Rejects with
 * ApiError where it has failed, with an AbortError once `signal` is aborted, which cancels it. A
 * server that cannot be reached is asked again: it may be starting.
 * @param {string} id
 * @param {{onLook: (job: any) => void, onLost: () => void, signal: AbortSignal}} listeners
 * @returns {Promise<any>}
 */
export async function follow(id, { onLook, onLost, signal }) {
  for (;;) {
    if (signal.aborted) {
      await forget(id); // which cancels it
      await forget(id);
      throw new DOMException("cancelled", "AbortError");
    }
    const job = await look(id, onLost);
    if (job && ENDED.includes(job.status)) {
      if (job.status === "succeeded") return job.answer;
      throw new api.ApiError(job.error?.message ?? "It was cancelled.");
    }
    if (job) onLook(job);
    await pause(signal);
  }
}

async function look(id, onLost) {
  try {
    return await api.job(id);
  } catch (error) {
    if (error.status && error.status < 500) throw error;
    onLost();
    return null;
  }
}

/** It expires there in any case. */
async function forget(id) {
  try {
    await api.removeJob(id);
  } catch {
    // Nobody waits for it.
  }
}

/** @param {AbortSignal} signal */
const pause = (signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, PAUSE_MS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve(null);
    });
  });
