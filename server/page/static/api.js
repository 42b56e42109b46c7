/* The server's routes as the page uses them: what it can do, a recording's transcript, and what
   opens a live session. */

import { EventReader } from "./event_stream.js";
import { recall, remember } from "./storage.js";

const KEY = "api-key";
const SECRET_S = 60; // in which a socket is opened

/** A refusal or failure: a stable code ("" where there is none), and why in words. */
export class ApiError extends Error {
  /**
   * @param {string} line as the server writes it: `CODE: reason`
   * @param {number} [status] HTTP's; 0 where nothing was answered
   * @param {number} [retryAfter] seconds until asking again makes sense; 0 where nothing is known
   */
  constructor(line, status = 0, retryAfter = 0) {
    const [, code, reason] = /^([A-Za-z_]+): ([^]*)$/.exec(line) ?? [line, "", line];
    super(reason);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/**
 * The key as the header carries it, byte by byte.
 * @returns {Record<string, string>}
 */
function authorization() {
  const key = recall(KEY);
  if (!key) return {};
  const bytes = new TextEncoder().encode(key);
  return { Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
}

/**
 * Send this key from now on, until the tab is closed.
 * @param {string} key
 */
export const useKey = (key) => remember(KEY, key.trim());

/**
 * A route's address. The page lies one folder below the routes, wherever a proxy puts both.
 * @param {string} route
 */
const address = (route) => new URL(`../${route}`, document.baseURI);

/**
 * @param {string} body
 * @param {number} status
 * @param {string | null} retryAfter the header of this name
 */
function refusal(body, status, retryAfter) {
  const seconds = Number(retryAfter) || 0; // a proxy may say a date
  try {
    const { detail, error } = JSON.parse(body);
    return new ApiError(detail ?? error.message, status, seconds);
  } catch {
    const line = `The server answered with status ${status} and no reason.`;
    return new ApiError(line, status, seconds);
  }
}

const UNREACHABLE = "The server cannot be reached.";

/**
 * The JSON that a route answers with. Throws ApiError.
 * @param {string} route
 * @param {RequestInit} [given]
 */
async function ask(route, given = {}) {
  const headers = { ...authorization(), ...given.headers };
  try {
    const response = await fetch(address(route), { ...given, headers, credentials: "omit" });
    if (!response.ok) {
      const retryAfter = response.headers.get("Retry-After");
      throw refusal(await response.text(), response.status, retryAfter);
    }
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    // What is no JSON comes from something else on the way, as where a network asks for a login.
    throw error instanceof ApiError ? error : new ApiError(UNREACHABLE);
  }
}

/** What the server can do (`GET /info`). Throws ApiError. */
export const info = () => ask("info");

/**
 * What opens a live session that begins with these settings, for a minute: browsers send no key
 * with a WebSocket. Throws ApiError, also where no session may be opened now.
 * @param {object} session as of `session.update`
 * @returns {Promise<{value: string}>}
 */
export const liveSecret = (session) =>
  ask("v1/realtime/client_secrets", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ session, expires_after: { anchor: "created_at", seconds: SECRET_S } }),
  });

/**
 * A WebSocket to a live session. Throws what `liveSecret` does; a refusal of the socket itself, of
 * which browsers are told no reason, is an event of the socket.
 * @param {object} session as of `session.update`
 */
export async function liveSocket(session) {
  const secret = await liveSecret(session);
  const url = address("v1/realtime?intent=transcription");
  url.protocol = url.protocol.replace("http", "ws");
  return new WebSocket(url, ["realtime", `openai-insecure-api-key.${secret.value}`]);
}

/**
 * @typedef {object} Listeners
 * @property {(sent: number, total: number) => void} onSent
 * @property {AbortSignal} signal ends the work
 */

/**
 * Send a recording; the text of the answer, of which `onText` is told as it comes. XMLHttpRequest
 * and not fetch, which cannot say how much was sent.
 *
 * Rejects with ApiError, or with an AbortError once `signal` is aborted.
 * @param {string} route
 * @param {File} recording
 * @param {object} parameters of `POST /`
 * @param {Listeners} listeners
 * @param {(text: string) => void} [onText]
 * @returns {Promise<string>}
 */
function send(route, recording, parameters, { onSent, signal }, onText = () => {}) {
  const form = new FormData();
  form.append("parameters", JSON.stringify(parameters));
  form.append("file", recording, recording.name);
  const request = new XMLHttpRequest();
  let read = 0;

  return new Promise((resolve, reject) => {
    const isTaken = () => request.status === 200 || request.status === 202;
    const readOn = () => {
      if (!isTaken()) return;
      const text = request.responseText.slice(read);
      read += text.length;
      onText(text);
    };
    request.upload.onprogress = (event) => onSent(event.loaded, event.total);
    request.onprogress = readOn;
    request.onload = () => {
      readOn();
      if (isTaken()) resolve(request.responseText);
      else {
        const retryAfter = request.getResponseHeader("Retry-After");
        reject(refusal(request.responseText, request.status, retryAfter));
      }
    };
    request.onerror = () => reject(new ApiError(UNREACHABLE));
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", address(route));
    for (const [name, value] of Object.entries(authorization()))
      request.setRequestHeader(name, value);
    request.send(form);
  });
}

/**
 * Transcribe a recording. Rejects as `send` does; an abort ends the work on the server too.
 * @param {File} recording
 * @param {object} parameters of `POST /`
 * @param {Listeners & {onMessage: (message: any) => void}} listeners messages are those of
 *   docs/server.md but the last, the answer
 * @returns {Promise<any>} the answer
 */
export async function transcribe(recording, parameters, listeners) {
  const events = new EventReader();
  let answer = null;
  let failure = new ApiError("The connection ended before the answer.");
  const onText = (text) => {
    for (const message of events.read(text)) {
      if (message.error) failure = new ApiError(message.error.message);
      else if (message.type === "answer") answer = message.answer;
      else listeners.onMessage(message);
    }
  };
  await send("?stream=true", recording, parameters, listeners, onText);
  if (!answer) throw failure;
  return answer;
}

/**
 * Have a recording transcribed later. Rejects as `send` does.
 * @param {File} recording
 * @param {object} parameters of `POST /`
 * @param {Listeners} listeners
 * @returns {Promise<any>} the job
 */
export const createJob = async (recording, parameters, listeners) =>
  JSON.parse(await send("v1/jobs", recording, parameters, listeners));

/** What has become of a job. Throws ApiError. @param {string} id */
export const job = (id) => ask(`v1/jobs/${id}`);

/** Cancel a job, or have the server forget one that has ended. @param {string} id */
export const removeJob = (id) => ask(`v1/jobs/${id}`, { method: "DELETE" });
