/* Controls the page: from a recording to its transcript. */

import * as api from "./api.js";
import { Dictation } from "./dictation.js";
import { byId, element } from "./dom.js";
import { fileText, formatsOf, save } from "./files.js";
import { clock, count, size } from "./format.js";
import { LONG_BYTES, follow, forgetJob, keepJob, keptJob } from "./jobs.js";
import { keep, kept } from "./storage.js";
import { Options } from "./options.js";
import { Player } from "./player.js";
import { Progress } from "./progress.js";
import { Speakers } from "./speakers.js";
import { Timeline } from "./timeline.js";
import { Transcript, timeButton } from "./transcript.js";

/** @typedef {import("./storage.js").Result} Result */

/** Texts for error codes; the server's reason follows. */
const MEANINGS = {
  AUDIO_TOO_LONG: "The recording is too long for this server",
  BODY_TOO_LARGE: "The recording is too large for this server",
  BUSY: "The server is busy",
  INVALID_AUDIO: "This file cannot be read as a recording",
  INVALID_PARAMETER: "An option has a wrong value",
  MODEL_ERROR: "The server failed on this recording",
  OUT_OF_MEMORY: "The server has too little memory for this recording",
  UNSUPPORTED: "The server's model does not support that",
  session_expired: "The live session has reached the server's time limit",
  session_idle: "The live session was idle for too long",
};

/** @type {any} the answer of `GET /info` */
let info = null;
/** @type {File | null} what is transcribed next */
let file = null;
/** @type {Result | null} what is shown */
let result = null;
/** @type {Speakers | null} those of the result */
let speakers = null;
/** @type {AbortController | null} ends the running work */
let running = null;
let safe = true; // a reload loses nothing
let hasJob = false; // what runs goes on without the page, and is found again

const options = new Options(byId("options"));
const progress = new Progress(announce);
const player = new Player(byId("player"), markTime);
const transcript = new Transcript(byId("transcript"), (seconds) => player.playFrom(seconds));
const dictation = new Dictation(transcript, {
  announce,
  onLost: () => stopListening(),
  onResumed: () => byId("failure").replaceChildren(),
  onFailure: (error, consequence) => fail(error, consequence),
});
const timeline = new Timeline(byId("timeline"), {
  onSeek: (seconds) => player.playFrom(seconds),
  onRename: rename,
});

/** Tell screen readers. */
function announce(text) {
  byId("announcement").textContent = text;
}

function markTime(seconds) {
  transcript.mark(seconds);
  timeline.mark(seconds);
}

// The beginning: what the server can do, after the key if the server asks for a key.

/** Set up the page; return whether that worked, else show why not. */
async function start() {
  try {
    const given = await api.info();
    for (const id of ["login", "unreachable"]) byId(id).hidden = true;
    if (!info) layOut(given);
    return true;
  } catch (error) {
    showStartFailure(error);
    return false;
  }
}

/** Show the server's options (`GET /info`), and restore what this tab has stored. */
function layOut(given) {
  info = given;
  for (const id of ["source", "result", "options"]) byId(id).hidden = false;
  const limits = `up to ${clock(info.max_audio_seconds)} long and ${size(info.max_audio_bytes)}`;
  byId("formats").textContent = `Any sound or video, ${limits}`;
  byId("model").textContent = modelLine(info);
  options.offer(info);
  const before = kept();
  if (before) {
    show(before);
    const note = `Kept from before the page was loaded again. To hear it, choose ${before.file} again.`;
    byId("notes").append(element("li", { textContent: note }));
  }
  const job = info.jobs && keptJob();
  if (job) {
    const { id, ...about } = job;
    finish(about, (signal) => answerOf(id, about.diarizes, signal));
  }
}

function modelLine({ embedded, model }) {
  if (embedded) return "Demonstration model: it knows 133 English words. --model names a real one.";
  return `Model: ${model}`;
}

function showStartFailure(error) {
  const locked = error.status === 401;
  byId("login").hidden = !locked;
  byId("unreachable").hidden = locked;
  if (!locked) byId("unreachable-reason").textContent = error.message;
  else byId("key").focus();
}

byId("again").onclick = start;
byId("login").onsubmit = async (event) => {
  event.preventDefault();
  byId("login-failure").textContent = "";
  api.useKey(byId("key").value);
  if (await start()) byId("file").focus();
  else byId("login-failure").textContent = "The server does not accept this key.";
};

// The recording: chosen, dropped, or spoken.

function choose(chosen) {
  byId("failure").textContent = "";
  take(chosen);
}

function take(chosen) {
  file = chosen;
  byId("chosen").replaceChildren(
    element("b", { textContent: chosen.name }),
    ` ${size(chosen.size)}`,
  );
  const isShown = result && result.file === chosen.name && result.bytes === chosen.size;
  if (chosen.size && !running && (!result || isShown)) {
    player.load(chosen);
    if (isShown) player.setLength(result.answer.duration);
  }
}

byId("file").onchange = () => {
  const [chosen] = byId("file").files;
  if (chosen) choose(chosen);
};

for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // else the browser opens the file in place of the page
    byId("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && !byId("source").hidden) choose(event.dataTransfer.files[0]);
  });
}

async function startListening() {
  if (dictation.active) return;
  const isLive = options.live && !running;
  const parameters = isLive && options.read();
  if (isLive && !parameters) return;
  byId("failure").textContent = "";
  byId("record").setAttribute("aria-disabled", "true");
  try {
    await dictation.start(isLive ? parameters : null, options.diarizes);
  } catch (error) {
    fail(error);
    byId("record").removeAttribute("aria-disabled");
    return;
  }
  if (isLive) clearResult();
  byId("stop").focus();
}

async function stopListening() {
  const before = result;
  const { diarizes } = options;
  const made = await dictation.stop();
  if (!made) return;
  byId("record").removeAttribute("aria-disabled");
  if (byId("stop") === document.activeElement) byId("record").focus();
  const { recording, answer, delay } = made;
  if (answer) {
    const about = { file: recording.name, bytes: recording.size, names: {}, diarizes };
    show({ answer, ...about, seconds: delay ?? 0, isLive: true });
    safe = keep(result);
  } else if (!running) bringBack(before);
  take(recording);
}

byId("record").onclick = startListening;
byId("stop").onclick = stopListening;

// The request, from its first byte to the transcript or the reason why there is none.

/** Show an error, and its `consequence`. */
function fail(error, consequence = "") {
  const meaning = MEANINGS[error.code ?? ""];
  const code = error.code ? [" ", element("code", { textContent: error.code })] : [];
  const reason = error.message.replace(/^no audio could be read: /, "").replace(/[.]?$/, ".");
  const said = meaning
    ? [element("b", { textContent: meaning }), `: ${reason}`]
    : [`${reason[0].toUpperCase()}${reason.slice(1)}`];
  byId("failure").replaceChildren(...said, ...code, ` ${consequence}`.trimEnd());
  if (error.status === 401) showStartFailure(error);
}

/** Why the server would refuse a request; null if unknown. */
function reasonAgainst() {
  if (!file) return "Choose or record something first.";
  if (!file.size) return "The file is empty.";
  if (file.size <= info.max_audio_bytes) return null;
  return `The file has ${size(file.size)}; this server takes up to ${size(info.max_audio_bytes)}.`;
}

async function transcribe() {
  if (running) return;
  if (dictation.active) await stopListening();
  const reason = reasonAgainst();
  if (reason) {
    fail(new Error(reason));
    return;
  }
  const parameters = options.read();
  if (parameters) await run(file, parameters);
}

async function run(recording, parameters) {
  const about = {
    file: recording.name,
    bytes: recording.size,
    diarizes: options.diarizes,
    began: Date.now(),
  };
  const isLong = info.jobs && recording.size > LONG_BYTES;
  await finish(about, (isLong ? asJob : asStream)(recording, parameters, about), recording);
}

/** Show the answer, or why there is none; `recording` is played if the page has it. */
async function finish({ began, ...about }, answering, recording) {
  const before = result;
  running = new AbortController();
  begin();
  try {
    const answer = await answering(running.signal);
    const seconds = (Date.now() - began) / 1000;
    if (recording) player.load(recording);
    show({ answer, ...about, seconds, names: {} });
    safe = keep(result);
  } catch (error) {
    showNothingNew(error, before);
  } finally {
    end();
  }
}

const onSent = (sent, total) => progress.sent(sent, total);

/** While the connection is held, with text as it comes. */
const asStream = (recording, parameters, { diarizes }) => (signal) => {
  const onMessage = (message) => {
    if (message.type === "decoded") progress.decoded(message.duration);
    if (message.type !== "progress") return;
    progress.transcribed(message.done, message.total, diarizes);
    transcript.hear(message.chunks);
  };
  return api.transcribe(recording, parameters, { onSent, onMessage, signal });
};

// The server accepts the recording, but no job.
const NO_ROOM = ["JOBS_FULL", "STORAGE_FAILED"];

/** As a job, which a reload finds again; as other recordings if the server has no room. */
const asJob = (recording, parameters, about) => async (signal) => {
  let id;
  try {
    ({ id } = await api.createJob(recording, parameters, { onSent, signal }));
  } catch (error) {
    if (!NO_ROOM.includes(error.code)) throw error;
    return asStream(recording, parameters, about)(signal);
  }
  const isKept = keepJob({ id, ...about });
  return answerOf(id, about.diarizes, signal, isKept);
};

/** The answer of a job, which a reload finds again if it `isKept`. */
async function answerOf(id, diarizes, signal, isKept = true) {
  const onLook = ({ progress: heard }) => {
    if (heard) progress.transcribed(heard.done, heard.total, diarizes);
    else progress.waiting();
  };
  hasJob = isKept;
  try {
    return await follow(id, { onLook, onLost: () => progress.lost(), signal });
  } finally {
    hasJob = false;
    forgetJob(id);
  }
}

function begin() {
  byId("failure").textContent = "";
  byId("run").setAttribute("aria-disabled", "true");
  clearResult();
  progress.start();
}

function clearResult() {
  for (const id of ["summary", "timeline", "hint", "empty"]) byId(id).hidden = true;
  transcript.clear();
}

function end() {
  running = null;
  byId("run").removeAttribute("aria-disabled");
  // The button that ended it is about to vanish with the focus on it.
  if (byId("progress").contains(document.activeElement)) byId("run").focus();
  progress.end();
}

/** Show why there is no answer, and restore the previous result. */
function showNothingNew(error, before) {
  bringBack(before);
  if (!before && error.code === "INVALID_AUDIO") player.unload();
  if (error.name === "AbortError") announce("Cancelled.");
  else fail(error, error.retryAfter ? `Try again in ${error.retryAfter} s.` : "");
}

function bringBack(before) {
  transcript.clear();
  if (before) show(before);
  byId("empty").hidden = Boolean(before);
}

byId("run").onclick = transcribe;
byId("cancel").onclick = () => running?.abort();

// The result.

function show(shown) {
  result = shown;
  speakers = new Speakers(shown.answer, shown.names);
  byId("empty").hidden = true;
  byId("summary").hidden = byId("hint").hidden = false;
  const found = summary(shown);
  byId("found").textContent = found.join(" · ");
  byId("notes").replaceChildren(
    ...notes(shown).map((textContent) => element("li", { textContent })),
  );
  showUnspoken(shown.answer.unspoken ?? []);
  showDownloads();
  transcript.draw(shown.answer, speakers);
  timeline.draw(speakers, shown.answer);
  player.setLength(shown.answer.duration);
  announce(`Done: ${found.join(", ")}.`);
}

function summary({ answer, seconds, isLive }) {
  const language =
    info.languages.find(({ code }) => code === answer.language)?.name ?? answer.language;
  const voices = speakers.labels.length && count(speakers.labels.length, "speaker");
  const facts = [
    `${clock(answer.duration)} of audio`,
    language,
    voices,
    answer.unspoken?.length === 0 && "all of your text is spoken",
    `${isLive ? "words after" : "ready in"} ${seconds.toFixed(1)} s`,
  ];
  return facts.filter(Boolean);
}

/** Why something is missing, and the server's warnings. */
function notes({ answer, diarizes, isLive }) {
  const said = answer.chunks.length && !speakers.labels.length;
  const missing = diarizes
    ? isLive
      ? "No speakers yet: Transcribe tells them apart in the recording, and follows all options."
      : "No speakers: nobody's voice could be told apart here."
    : info.diarization
      ? "No speakers: they were not asked for."
      : "No speakers: the server has no diarization model (--diarization).";
  const unknown = (answer.known_speakers ?? []).filter(({ matched }) => !matched);
  const notFound = `Not heard in this recording: ${unknown.map(({ name }) => name).join(", ")}.`;
  return [...(said ? [missing] : []), ...(unknown.length ? [notFound] : []), ...answer.warnings];
}

/** Show the parts of a given text that nobody says, with their places. */
function showUnspoken(parts) {
  const list = byId("unspoken");
  list.hidden = !parts.length;
  list.open = true;
  list.firstElementChild.textContent = `Not spoken: ${count(parts.length, "part")} of your text`;
  list.lastElementChild.replaceChildren(
    ...parts.map(({ text, timestamp: [at] }) =>
      element(
        "li",
        {},
        Object.assign(timeButton(at), { onclick: () => player.playFrom(at) }),
        element("span", { dir: "auto", textContent: text.trim() }),
      ),
    ),
  );
}

function showDownloads() {
  const buttons = formatsOf(result.answer).map((format) =>
    element("button", {
      type: "button",
      id: `download-${format}`,
      textContent: format.toUpperCase(),
      onclick: () => download(format),
    }),
  );
  byId("downloads").replaceChildren(byId("downloads").firstElementChild, ...buttons);
}

function download(format) {
  const stem = result.file.replace(/\.[^.]*$/, "") || "recording";
  save(stem, format, fileText(format, result.answer, speakers, stem));
}

/** Rename a speaker everywhere; returns the accepted name. */
function rename(label, name) {
  speakers.rename(label, name);
  transcript.draw(result.answer, speakers);
  result.names = speakers.names;
  safe = keep(result);
  return speakers.nameOf(label);
}

window.addEventListener("beforeunload", (event) => {
  if ((running && !hasJob) || dictation.active || !safe) event.preventDefault();
});

start();
