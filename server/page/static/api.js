/* The server's routes as the page uses them: what it can do, and a recording's transcript. */

import { EventReader } from "./event_stream.js";

const KEY = "api-key";

/** A refusal or failure: a stable code ("" where there is none), and why in words. */
export class ApiError extends Error {
  /**
   * @param {string} line as the server writes it: `CODE: reason`
   * @param {number} [status] HTTP's; 0 where nothing was answered
   */
  constructor(line, status = 0) {
    const [, code, reason] = /^([A-Z_]+): ([^]*)$/.exec(line) ?? [line, "", line];
    super(reason);
    this.code = code;
    this.status = status;
  }
}

/**
 * The key as the header carries it, byte by byte.
 * @returns {Record<string, string>}
 */
function authorization() {
  const key = sessionStorage.getItem(KEY);
  if (!key) return {};
  const bytes = new TextEncoder().encode(key);
  return { Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
}

/**
 * Send this key from now on, until the tab is closed.
 * @param {string} key
 */
export const useKey = (key) => sessionStorage.setItem(KEY, key.trim());

/**
 * A route's address. The page lies one folder below the routes, wherever a proxy puts both.
 * @param {string} route
 */
const address = (route) => new URL(`../${route}`, document.baseURI);

/**
 * @param {string} body
 * @param {number} status
 */
function refusal(body, status) {
  try {
    return new ApiError(JSON.parse(body).detail, status);
  } catch {
    return new ApiError(`The server answered with status ${status} and no reason.`, status);
  }
}

const UNREACHABLE = "The server cannot be reached.";

/**
 * What the server can do (`GET /info`). Throws ApiError.
 */
export async function info() {
  let response;
  try {
    response = await fetch(address("info"), { headers: authorization(), credentials: "omit" });
  } catch {
    throw new ApiError(UNREACHABLE);
  }
  if (!response.ok) throw refusal(await response.text(), response.status);
  return response.json();
}

/**
 * Transcribe a recording. XMLHttpRequest and not fetch, which cannot say how much was sent.
 *
 * Rejects with ApiError, or with an AbortError once `signal` is aborted, which ends the work on the
 * server too.
 * @param {File} recording
 * @param {object} parameters of `POST /`
 * @param {{onSent: (sent: number, total: number) => void, onMessage: (message: any) => void,
 *   signal: AbortSignal}} listeners messages are those of docs/server.md but the last, the answer
 * @returns {Promise<any>} the answer
 */
export function transcribe(recording, parameters, { onSent, onMessage, signal }) {
  const form = new FormData();
  form.append("parameters", JSON.stringify(parameters));
  form.append("file", recording, recording.name);
  const request = new XMLHttpRequest();
  const events = new EventReader();
  let read = 0;

  return new Promise((resolve, reject) => {
    const readOn = () => {
      if (request.status !== 200) return;
      const text = request.responseText.slice(read);
      read += text.length;
      for (const message of events.read(text)) {
        if (message.error) reject(new ApiError(message.error.message));
        else if (message.type === "answer") resolve(message.answer);
        else onMessage(message);
      }
    };
    request.upload.onprogress = (event) => onSent(event.loaded, event.total);
    request.onprogress = readOn;
    request.onload = () => {
      readOn();
      // Says nothing where the answer has come.
      if (request.status === 200) reject(new ApiError("The connection ended before the answer."));
      else reject(refusal(request.responseText, request.status));
    };
    request.onerror = () => reject(new ApiError(UNREACHABLE));
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", address("?stream=true"));
    for (const [name, value] of Object.entries(authorization()))
      request.setRequestHeader(name, value);
    request.send(form);
  });
}
