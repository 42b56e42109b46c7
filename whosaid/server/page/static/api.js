/* The server's routes as the page uses them. */

import { recall, remember } from "./storage.js";

const KEY = "api-key";
const SECRET_S = 60; // in which a socket is opened
const UNREACHABLE = "The server cannot be reached.";

/** A refusal or failure: a stable code ("" without one), and a reason. */
export class ApiError extends Error {
  /**
   * @param {string} line the server's, `CODE: reason`
   * @param {number} [status] HTTP's; 0 without an answer
   * @param {number} [retryAfter] seconds after which to retry; 0 if unknown
   */
  constructor(line, status = 0, retryAfter = 0) {
    const [, code, reason] = /^([A-Za-z_]+): ([^]*)$/.exec(line) ?? [line, "", line];
    super(reason);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The header with the key, encoded byte by byte. */
function authorization() {
  const key = recall(KEY);
  if (!key) return {};
  const bytes = new TextEncoder().encode(key);
  return { Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
}

/** Send this key from now on, until the tab is closed. */
export const useKey = (key) => remember(KEY, key.trim());

/** A route's URL: the page is one folder below the routes, also behind a proxy. */
const address = (route) => new URL(`../${route}`, document.baseURI);

function refusal(body, status, retryAfter) {
  const seconds = Number(retryAfter) || 0; // a proxy may send a date
  try {
    const { detail, error } = JSON.parse(body);
    return new ApiError(detail ?? error.message, status, seconds);
  } catch {
    const line = `The server answered with status ${status} and no reason.`;
    return new ApiError(line, status, seconds);
  }
}

/** Return a route's JSON. Throws ApiError. */
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
    // A captive portal or proxy on the way may answer without JSON.
    throw error instanceof ApiError ? error : new ApiError(UNREACHABLE);
  }
}

/** The server's features (`GET /info`). */
export const info = () => ask("info");

/**
 * A secret that opens a live session with these settings (`session.update`): browsers send no key
 * with a WebSocket. Throws ApiError, also if the server accepts no session now.
 */
export const liveSecret = (session) =>
  ask("v1/realtime/client_secrets", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ session, expires_after: { anchor: "created_at", seconds: SECRET_S } }),
  });

/** A WebSocket to a live session. Throws as `liveSecret`; browsers hide why a socket fails. */
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
 * Send a recording; the answer's text, which `onText` gets as it comes. By XMLHttpRequest, because
 * fetch does not tell how much was sent. Rejects with ApiError, or with an AbortError once `signal`
 * is aborted.
 * @param {object} parameters of `POST /`
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
 * The answer to a recording. Rejects as `send` does; an abort ends the work on the server too.
 * `onMessage` gets the other messages of docs/server.md.
 */
export async function transcribe(recording, parameters, { onMessage, ...listeners }) {
  let [rest, answer, failure] = ["", null, new ApiError("The connection ended before the answer.")];
  const onText = (text) => {
    const events = (rest + text).split("\n\n");
    rest = events.pop();
    // Each event is a line of JSON; comments keep the connection open.
    for (const event of events.filter((each) => each.startsWith("data:"))) {
      const message = JSON.parse(event.slice(5));
      if (message.error) failure = new ApiError(message.error.message);
      else if (message.type === "answer") answer = message.answer;
      else onMessage(message);
    }
  };
  await send("?stream=true", recording, parameters, listeners, onText);
  if (!answer) throw failure;
  return answer;
}

/** A job that transcribes a recording later. Rejects as `send` does. */
export const createJob = async (recording, parameters, listeners) =>
  JSON.parse(await send("v1/jobs", recording, parameters, listeners));

/** Return a job's state. Throws ApiError. */
export const job = (id) => ask(`v1/jobs/${id}`);

/** Cancel a job, or delete it if it has ended. */
export const removeJob = (id) => ask(`v1/jobs/${id}`, { method: "DELETE" });
