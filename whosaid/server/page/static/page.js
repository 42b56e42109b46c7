/* Controls the page: from a recording to its transcript. */

import * as api from "./api.js";
import { Desk } from "./desk.js";
import { Dictation } from "./dictation.js";
import { byId, html, saveAs } from "./dom.js";
import { exclusively, trouble } from "./database.js";
import { Library, askToKeep } from "./library.js";
import { clipOf } from "./microphone.js";
import { Options, isValid } from "./options.js";
import { showProgress } from "./progress.js";
import { Records, wordsOf } from "./records.js";
import { Selection } from "./selection.js";
import { Work } from "./work.js";

/** Texts for error codes; the server's reason follows. */
const MEANINGS = {
  AUDIO_TOO_LONG: "The recording is too long for this server",
  BODY_TOO_LARGE: "The recording is too large for this server",
  BUSY: "The server is busy",
  INVALID_AUDIO: "This file cannot be read as a recording",
  INVALID_PARAMETER: "An option has a wrong value",
  MODEL_ERROR: "The server failed on this recording",
  QUOTA_EXCEEDED: "The audio that your key allows a day is used",
  OUT_OF_MEMORY: "The server has too little memory for this recording",
  UNAVAILABLE: "The server lacks memory or processes at the moment",
  UNSUPPORTED: "The server's model does not support that",
  session_expired: "The live session has reached the server's time limit",
  session_idle: "The live session was idle for too long",
};

const TITLE = document.title;
const KEEP_MS = 1000; // after the last correction
const SHORTEST_CLIP = 2; // seconds
const BESIDE = "Another tab has changed this transcript too: yours is kept beside it.";
const LOST = "This browser no longer has the recording. To hear it, choose the file again.";
const CUT = "The recording was cut off: what was recorded until then is here.";
const DEMONSTRATION = "Demonstration model: it knows 133 English words. --model names a real one.";

const announce = (text) => (byId("announcement").textContent = text);
let info = null; // the answer of `GET /info`
let opened = ""; // the id of the record that is open; "" without one
let shows = 0; // calls of show(), of which the last one counts
let starting = null; // what Transcribe was pressed for
let correction = null; // one that is not stored yet: returns the answer and the names of speakers
let correctionTimer = 0;
let saving = Promise.resolve();

const options = new Options(byId("options"));
const selection = new Selection();
const desk = new Desk({
  announce,
  layout: () => options.layout(),
  onChange: (made) => {
    correction = made;
    clearTimeout(correctionTimer);
    correctionTimer = setTimeout(keepCorrection, KEEP_MS);
  },
  onFailure: fail,
  onAlign: alignAnew,
  onRemember: remember,
});
const { player, transcript } = desk;
const records = new Records(onChange);
const work = new Work(records, {
  onProgress: (id) => {
    library.update(id);
    if (id === opened) drawProgress();
  },
  onText: (id, chunks) => id === opened && transcript.hear(chunks),
  onEnd,
  onStop: fail,
});
const library = new Library(records, {
  stateOf: (id) => work.progressOf(id)?.short ?? "Waiting",
  isOpen: (id) => id === opened,
  onOpen: () => goToFound(),
  onRemove: removeRecords,
});
const newDictation = () =>
  new Dictation(records, transcript, {
    announce,
    onLost: () => stopListening(),
    onResumed: () => byId("failure").replaceChildren(),
    onFull: () => library.draw(),
    onFailure: fail,
  });
let dictation = newDictation();
const saveButton = html`<button id="download-recording" class="small" title="Save the recording as a file" />`;

// The beginning: what the server can do, after the key if the server asks for a key.

/** Set up the page; return whether that worked, else show why not. */
async function start() {
  try {
    const given = await api.info();
    for (const id of ["login", "unreachable"]) byId(id).hidden = true;
    byId("failure").textContent = "";
    if (info) work.resume(given);
    else await layOut(given);
  } catch (error) {
    showStartFailure(error);
    return false;
  }
  return true;
}

/** Show the server's options (`GET /info`), and what this browser has stored. */
async function layOut(given) {
  info = desk.info = given;
  await records.load();
  for (const id of ["source", "result", "options"]) byId(id).hidden = false;
  byId("model").textContent = info.embedded ? DEMONSTRATION : `Model: ${info.model}`;
  selection.offer(info);
  options.offer(info);
  work.resume(info);
  await open(location.hash.slice(1));
  for (const { id } of records.list.filter(({ state }) => state === "recording")) recover(id);
}

/** Keep a recording that a tab did not end, once no tab records it. */
function recover(id) {
  return exclusively(`work ${id}`, async () => {
    if ((await records.fresh(id))?.state !== "recording") return;
    if (!(await records.endRecording(id, { isCut: true }))) await removeRecords([id]);
    else if (id === opened) await show();
  });
}

function showStartFailure(error) {
  const locked = error.status === 401;
  byId("login").hidden = !locked;
  byId("unreachable").hidden = locked;
  byId("unreachable-reason").textContent = locked ? "" : error.message;
  if (locked) byId("key").focus();
}

byId("again").onclick = start;
byId("login").onsubmit = async (event) => {
  event.preventDefault();
  byId("login-failure").textContent = "";
  api.useKey(byId("key").value);
  if (await start()) byId("file").focus();
  else byId("login-failure").textContent = "The server does not accept this key.";
};

// The record that is open. Its id is the fragment of the page's address.

async function open(id) {
  await keepCorrection();
  opened = records.get(id) ? id : "";
  const { pathname, search, hash } = location;
  if (hash.slice(1) !== opened) history.pushState(null, "", opened ? `#${opened}` : pathname + search);
  await show();
}

async function show() {
  const [id, turn] = [opened, ++shows];
  const entry = records.get(id);
  desk.clear();
  desk.record = null;
  byId("failure").textContent = "";
  if (work.stop?.wait) fail(work.stop);
  byId("remarks").replaceChildren();
  document.title = entry ? `${entry.file} · ${TITLE}` : TITLE;
  byId("result-title").textContent = entry?.file ?? "Transcript";
  byId("result-title").classList.toggle("unseen", !entry);
  library.draw();
  drawProgress();
  if (!entry) {
    player.unload();
    byId("empty").hidden = false;
    return;
  }
  const hasText = entry.answerBytes && entry.state !== "waiting";
  const [files, record] = await Promise.all([records.filesOf(entry), hasText && records.read(id)]);
  if (turn !== shows) return;
  select(files, id);
  desk.hasRecording = files.length > 0;
  if (files.length && entry.error?.code !== "INVALID_AUDIO") player.load(files, entry.starts);
  else player.unload();
  if (record) desk.show(record);
  else if (entry.state === "waiting") transcript.hear(work.progressOf(id)?.chunks ?? []);
  else byId("empty").hidden = false;
  if (entry.duration) player.setLength(entry.duration);
  if (entry.state === "failed") fail(entry.error);
  if (!files.length && entry.state !== "recording") note(LOST);
  if (entry.isCut) note(CUT);
  saveButton.textContent = record ? "Recording" : "Save as a file";
  saveButton.onclick = () => files.forEach((file) => saveAs(file.name, file));
  if (files.length && (record || !entry.modified)) byId(record ? "downloads" : "chosen").append(saveButton);
}

function select(files, id) {
  const taken = selection.take(files, id);
  drawProgress();
  return taken;
}

const note = (text) => byId("remarks").append(html`<li class="notice">${text}</li>`);

function drawProgress() {
  const entry = records.get(opened);
  showProgress(entry?.state === "waiting" && work.progressOf(opened), entry?.began, announce);
  const isWaiting = records.get(selection.id)?.state === "waiting";
  byId("run").ariaDisabled = isWaiting ? "true" : null;
}

/** Select what the list was searched for in the open transcript. */
const goToFound = () => desk.editor.find(wordsOf(library.query));

window.addEventListener("hashchange", () => {
  if (dictation.isWriting) fail(new Error("Stop the recording first."));
  else open(location.hash.slice(1)).then(goToFound);
});

function onChange(id, isElsewhere) {
  library.refresh();
  askToKeep();
  const entry = records.get(id);
  if (entry?.state === "waiting") work.watch(id);
  if (id !== opened || !isElsewhere) return;
  if (!entry) open("");
  else if (!correction && entry.version !== desk.record?.version) show();
}

async function removeRecords(ids) {
  for (const id of ids) work.cancel(id);
  if (ids.includes(opened)) correction = null;
  await records.remove(ids);
  if (ids.includes(selection.id)) select([]);
  if (ids.includes(opened)) await open("");
}

function keepCorrection(isLeft = false) {
  const [give, { record }] = [correction, desk];
  correction = null;
  if (!give) return saving;
  const keep = async () => {
    const [answer, names] = give();
    const { id, version } = await records.correct(record, answer, names, isLeft);
    const isCopy = id !== record.id;
    Object.assign(record, { id, version });
    if (!isCopy || desk.record !== record) return;
    opened = id;
    history.replaceState(null, "", `#${opened}`);
    note(BESIDE);
  };
  return (saving = isLeft ? keep() : saving.then(keep));
}

/** Keep a clip of a speaker's voice, cut from the recording, among the people you know. */
async function remember(label, name, { start, end }) {
  const { file, tracks, starts, ...entry } = records.get(opened);
  if (end - start < SHORTEST_CLIP) {
    note(`${name} nowhere speaks alone for ${SHORTEST_CLIP} seconds: choose a clip as a file.`);
    return;
  }
  const files = await records.filesOf(entry);
  const place = Math.max(0, tracks?.indexOf(label) ?? 0);
  const began = starts?.[place] ?? 0;
  announce(`Listening to ${name} for ${Math.round(end - start)} s.`);
  try {
    const clip = await clipOf(files[place], start - began, end - began, `${name}, ${file}.wav`);
    await options.keep(clip, name);
    note(`The voice of ${name} is kept among the people you know, for the next recordings.`);
  } catch (error) {
    fail(error);
  }
}

/** Let the server time a corrected text by the recording; names stay. */
async function alignAnew(text) {
  const parameters = options.read(records.get(opened));
  if (!parameters) return;
  await keepCorrection();
  await work.add(opened, { ...parameters, text }, true, true);
  await show();
}

// The recording: chosen, dropped, or spoken.

/** Take files. One that a record has is not stored again. */
async function choose(files) {
  byId("failure").textContent = "";
  const [file] = files;
  const known = files.length === 1 && records.list.find((entry) => isOf(file, entry));
  if (known && !(await records.filesOf(known)).length) await records.giveFile(known.id, file);
  const isShown = known && known.id === opened;
  await Promise.all([select(files, known ? known.id : ""), isShown && open(opened)]);
  if (selection.files === files && !opened && !dictation.active && file.size) player.load([file]);
}

const isOf = ({ name, size: bytes, lastModified }, entry) =>
  entry.file === name && entry.bytes === bytes && (entry.modified ?? lastModified) === lastModified;

byId("file").onchange = async () => {
  const files = [...byId("file").files];
  byId("file").value = ""; // the same file may be chosen again
  if (files.length) await choose(files);
};

for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // else the browser opens the file in place of the page
    byId("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && !byId("source").hidden) choose([...event.dataTransfer.files]);
  });
}

byId("record").onclick = async () => {
  if (dictation.active) return;
  const parameters = options.live && options.read();
  if (options.live && !parameters) return;
  dictation = newDictation();
  byId("failure").textContent = "";
  byId("record").ariaDisabled = "true";
  try {
    await dictation.start(parameters || null, options.diarizes);
  } catch (error) {
    fail(error);
    byId("record").ariaDisabled = null;
    return;
  }
  // Meanwhile another record may have been opened.
  if (options.live) await open("").then(() => desk.clear());
  byId("stop").focus();
};

async function stopListening() {
  const isFocused = byId("stop") === document.activeElement;
  const id = await dictation.stop();
  if (!id) return;
  byId("record").ariaDisabled = null;
  // The browser takes the focus from a hidden button with the next frame.
  if (isFocused && [document.body, byId("stop")].includes(document.activeElement)) byId("record").focus();
  const failure = [...byId("failure").childNodes];
  await open(id);
  byId("failure").replaceChildren(...failure);
}

byId("stop").onclick = stopListening;

// The request, from its first byte to the transcript or the reason why there is none.

/** Show an error, and its `consequence`. */
function fail(error, consequence = error.retryAfter ? `Try again in ${error.retryAfter} s.` : "") {
  const meaning = MEANINGS[error.code ?? ""];
  const code = error.code ? [" ", html`<code>${error.code}</code>`] : [];
  const reason = error.message.replace(/^no audio could be read: /, "").replace(/[.]?$/, ".");
  const said = meaning
    ? [html`<b>${meaning}</b>`, `: ${reason}`]
    : [`${reason[0].toUpperCase()}${reason.slice(1)}`];
  byId("failure").replaceChildren(...said, ...code, ` ${error.wait ?? consequence}`.trimEnd());
  if (error.status === 401) showStartFailure(error);
}

byId("run").onclick = () => (starting ??= transcribe().finally(() => (starting = null)));

async function transcribe() {
  if (dictation.active) await stopListening();
  if (records.get(selection.id)?.state === "waiting") return;
  const { id, groups, tracks, reason } = selection;
  if (reason) {
    fail(new Error(reason));
    return;
  }
  const parameters = isValid(byId("chosen")) && options.read(id ? records.get(id) : tracks);
  if (!parameters) return;
  byId("failure").textContent = "";
  const ids = id ? [id] : [];
  for (const files of id ? [] : groups) {
    const names = files.map(({ name }) => name).join(", ");
    const file = files.length > 1 ? [...names].slice(0, 80).join("") : names; // short enough for a file's name
    const bytes = files.reduce((sum, { size }) => sum + size, 0);
    const about = { file, bytes, modified: files[0].lastModified, state: "kept", ...tracks };
    ids.push((await records.add(about, files)).id);
  }
  for (const each of ids) await work.add(each, parameters, options.diarizes);
  await open(ids[0]);
}

async function onEnd(id, { error, made }) {
  library.refresh();
  if (error?.status === 401) showStartFailure(error);
  if (id !== opened) return;
  // The button that ended it is about to vanish with the focus on it.
  const isLeft = byId("progress").contains(document.activeElement);
  await open(made ?? id);
  if (isLeft) byId("run").focus();
  if (error?.name === "AbortError") announce("Cancelled.");
  else if (error) fail(error);
}

byId("cancel").onclick = () => work.cancel(opened);

for (const name of ["beforeunload", "pagehide"])
  window.addEventListener(name, (event) => {
    keepCorrection(true);
    if (dictation.active || work.isHeld || trouble()) event.preventDefault();
  });

start();
