/* The browser's database, in which recordings, transcripts and voices stay on this machine. Values
   that the browser has no room for are kept in memory, until they fit or the page is closed. */

import { openDB } from "./vendor/idb.js";

/** Stores, with the key of their values. */
const STORES = {
  entries: "id", // of the list: all of a record but its answer
  answers: "id",
  texts: "id", // of answers, for the search
  recordings: "id", // files
  pieces: ["id", "number"], // of recordings that the microphone is making
  clips: "id", // of known people
};

/** Async, because a browser that blocks the database throws at once. */
const open = async () =>
  openDB("who-said-what", 1, {
    upgrade(database) {
      for (const [store, keyPath] of Object.entries(STORES))
        database.createObjectStore(store, { keyPath });
    },
    blocking: (_, __, event) => event.target.close(),
  });

const opened = open();
opened.catch(() => {}); // each use says so

// Values in memory alone, by store and key.
const unsaved = new Map(Object.keys(STORES).map((store) => [store, new Map()]));
let failure = ""; // why the last value was not stored

/** The key of a value, as the database compares it. */
function keyOf(store, value) {
  const names = STORES[store];
  return Array.isArray(names) ? names.map((name) => value[name]) : value[names];
}

/** Forget values in memory: of a key, or of an IDBKeyRange. */
function forget(store, key) {
  const values = unsaved.get(store);
  for (const [name, value] of key instanceof IDBKeyRange ? [...values] : [])
    if (key.includes(keyOf(store, value))) values.delete(name);
  values.delete(String(key));
}

export async function read(store, key) {
  const database = await opened.catch(() => null);
  return unsaved.get(store).get(String(key)) ?? database?.get(store, key).catch(() => undefined);
}

/** The values of a store, or of an IDBKeyRange, in any order. */
export async function readAll(store, range) {
  const database = await opened.catch(() => null); // blocked: there are only those in memory
  const stored = (await database?.getAll(store, range).catch(() => [])) ?? [];
  const inMemory = [...unsaved.get(store).values()];
  return [
    ...stored.filter((value) => !isUnsaved(store, keyOf(store, value))),
    ...inMemory.filter((value) => !range || range.includes(keyOf(store, value))),
  ];
}

/**
 * Store values ([store, value]) and delete others ([store, key or IDBKeyRange]), all or nothing; else
 * the values stay in memory. `expected` is an entry as it was read: if another tab has changed or
 * deleted it, nothing is done. Returns "stored", "unsaved" or "changed".
 */
export async function write(puts, deletes = [], expected) {
  let transaction;
  try {
    transaction = (await opened).transaction(Object.keys(STORES), "readwrite");
    transaction.done.catch(() => {}); // awaited below, as is the failure of each put
    const entry = expected && (await transaction.objectStore("entries").get(expected.id));
    if (expected && !isUnsaved("entries", expected.id) && entry?.version !== expected.version)
      return "changed";
    for (const [store, value] of puts) transaction.objectStore(store).put(value).catch(() => {});
    for (const [store, key] of deletes) transaction.objectStore(store).delete(key);
    transaction.commit(); // also if the page is being left
    await transaction.done;
  } catch (error) {
    failure = error.name;
    try {
      transaction?.abort();
    } catch {
      // The browser has aborted it.
    }
    for (const [store, key] of deletes) forget(store, key);
    for (const [store, value] of puts) unsaved.get(store).set(String(keyOf(store, value)), value);
    return "unsaved";
  }
  for (const [store, key] of deletes) forget(store, key);
  for (const [store, value] of puts) forget(store, keyOf(store, value));
  return "stored";
}

/** Store what is in memory alone, after room was made. */
export async function retry() {
  for (const [store, values] of unsaved)
    for (const value of [...values.values()]) await write([[store, value]]);
}

export const isUnsaved = (store, key) => unsaved.get(store).has(String(key));

/** Why values are in memory alone: "full", "blocked", or "" if all are stored. */
export function trouble() {
  if (![...unsaved.values()].some(({ size }) => size)) return "";
  return failure === "QuotaExceededError" ? "full" : "blocked";
}

export const newId = () => crypto.getRandomValues(new Uint32Array(2)).join("-");

// A page that is left may be frozen with its locks, and shown again.
const left = new Promise((resolve) => addEventListener("pagehide", resolve));
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());

/** Run work under a name, after that of other tabs with the same name. */
export const exclusively = (name, work) =>
  navigator.locks ? navigator.locks.request(name, () => Promise.race([work(), left])) : work();
