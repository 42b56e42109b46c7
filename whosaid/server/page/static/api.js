/* The server's routes as the page uses them. */

const KEY = "api-key"; // in the tab's storage, which the browser may block
const SECRET_S = 60; // in which a socket is opened
const UNREACHABLE = "The server cannot be reached.";

/** A refusal or failure: a stable code ("" without one), and a reason. */
export class ApiError extends Error {
  /** `line` is the server's `CODE: reason`, `retryAfter` the header, in which a proxy may send a date. */
  constructor(line, status = 0, retryAfter = null) {
    const [, code, reason] = /^([A-Za-z_]+): ([^]*)$/.exec(line) ?? [line, "", line];
    super(reason);
    this.code = code;
    this.status = status;
    this.retryAfter = Number(retryAfter) || 0; // seconds; 0 if unknown
  }
}

let [key, storage] = ["", null];
try {
  storage = sessionStorage;
  key = storage.getItem(KEY) ?? "";
} catch {
  // The key lasts until the page is loaded again.
}

/** Send this key from now on, until the tab is closed. */
export function useKey(given) {
  key = given.trim();
  storage?.setItem(KEY, key);
}

/** The header with the key, encoded byte by byte. */
function authorization() {
  if (!key) return {};
  const bytes = new TextEncoder().encode(key);
  return { Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
}

/** A route's URL: the page is one folder below the routes, also behind a proxy. */
const address = (route) => new URL(`../${route}`, document.baseURI);

function refusal(body, status, retryAfter) {
  let line = `The server answered with status ${status} and no reason.`;
  try {
    const { detail, error } = JSON.parse(body);
    line = detail ?? error.message;
  } catch {
    // It is a proxy's.
  }
  return new ApiError(line, status, retryAfter);
}

/** Return what `read` makes of a route's response, by default its JSON. Throws ApiError. */
async function ask(route, given = {}, read = (response) => response.json()) {
  const headers = { ...authorization(), ...given.headers };
  try {
    const response = await fetch(address(route), { ...given, headers, credentials: "omit" });
    if (response.ok) return await read(response);
    throw refusal(await response.text(), response.status, response.headers.get("Retry-After"));
  } catch (error) {
    // A captive portal or proxy on the way may answer without JSON.
    throw error instanceof ApiError ? error : new ApiError(UNREACHABLE);
  }
}

/** The server's features (`GET /info`). Throws ApiError, as all of these do. */
export const info = () => ask("info");

const posted = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

export const transcriptFile = (format, body) =>
  ask(`v1/transcripts/${format}`, posted(body), (response) => response.blob());

/** A secret that opens a live session (`session.update`): browsers send no key with a WebSocket. */
export function liveSecret(session) {
  const expires_after = { anchor: "created_at", seconds: SECRET_S };
  return ask("v1/realtime/client_secrets", posted({ session, expires_after }));
}

/** A WebSocket to a live session. Throws as `liveSecret`; browsers hide why a socket fails. */
export async function liveSocket(session) {
  const secret = await liveSecret(session);
  const url = address("v1/realtime?intent=transcription");
  url.protocol = url.protocol.replace("http", "ws");
  return new WebSocket(url, ["realtime", `openai-insecure-api-key.${secret.value}`]);
}

/**
 * Send the files of a recording; the answer's text, which `onText` gets as it comes. By
 * XMLHttpRequest, because fetch does not tell how much was sent. Rejects with ApiError, or with an
 * AbortError once `signal` is aborted.
 */
function send(route, files, parameters, { onSent, signal }, onText = () => {}) {
  const form = new FormData();
  form.append("parameters", JSON.stringify(parameters));
  for (const file of files) form.append("file", file, file.name);
  const request = new XMLHttpRequest();
  let read = 0;

  return new Promise((resolve, reject) => {
    const isTaken = () => request.status === 200 || request.status === 202;
    request.upload.onprogress = ({ loaded, total }) => onSent(loaded, total);
    request.onprogress = () => {
      if (!isTaken()) return;
      onText(request.responseText.slice(read));
      read = request.responseText.length;
    };
    request.onload = () => {
      request.onprogress();
      const { responseText, status } = request;
      if (isTaken()) resolve(responseText);
      else reject(refusal(responseText, status, request.getResponseHeader("Retry-After")));
    };
    request.onerror = () => reject(new ApiError(UNREACHABLE));
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", address(route));
    for (const header of Object.entries(authorization())) request.setRequestHeader(...header);
    request.send(form);
  });
}

/** The answer to a recording; `onMessage` gets the other messages of docs/server.md. */
export async function transcribe(files, parameters, { onMessage, ...listeners }) {
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
  await send("?stream=true", files, parameters, listeners, onText);
  if (!answer) throw failure;
  return answer;
}

/** The id of a new job. */
export const createJob = async (...given) => JSON.parse(await send("v1/jobs", ...given)).id;

export const job = (id) => ask(`v1/jobs/${id}`);

/** Cancel a job, or delete it if it has ended. */
export const removeJob = (id) => ask(`v1/jobs/${id}`, { method: "DELETE" }, () => null);
