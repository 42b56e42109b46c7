/* Long recordings as jobs of the server: the id of the running job outlives the page, so that a
   reload, or a broken connection, loses nothing. */

import * as api from "./api.js";

const NAME = "job";
const ENDED = ["succeeded", "failed", "cancelled"];
const PAUSE_MS = 1000;
// Longer recordings are jobs: about five minutes of MP3.
export const LONG_BYTES = 5 * 2 ** 20;

/** Store a job's id and its description for the page. Returns whether the browser had room. */
export function keepJob(job) {
  try {
    localStorage.setItem(NAME, JSON.stringify(job));
    return true;
  } catch {
    return false;
  }
}

/** Forget this job, but not one that another tab has started. */
export function forgetJob(id) {
  if (keptJob()?.id === id) localStorage.removeItem(NAME);
}

export function keptJob() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "null");
  } catch {
    return null;
  }
}

/**
 * The answer of a job. Rejects with ApiError if the job has failed, with an AbortError once `signal`
 * is aborted, which cancels the job. An unreachable server is asked again, because it may be restarting.
 * @param {{onLook: (job: any) => void, onLost: () => void, signal: AbortSignal}} listeners
 */
export async function follow(id, { onLook, onLost, signal }) {
  for (;;) {
    if (signal.aborted) {
      await forget(id); // cancels the job
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

async function forget(id) {
  try {
    await api.removeJob(id);
  } catch {
    // The job expires on the server in any case.
  }
}

const pause = (signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, PAUSE_MS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve(null);
    });
  });
