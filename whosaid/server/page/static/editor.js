/* The text of a record, to be corrected: turns under their speakers' names, and words that play. */

import { assign, freeLabel, join, rename, split, unite } from "./edits.js";
import { byId, html } from "./dom.js";
import { clock } from "./format.js";
import { corrected, hasSpeakers, isDoubtful, manuscriptOf, schema, wordsOf } from "./manuscript.js";
import { plain } from "./records.js";
import { Speakers } from "./speakers.js";
import * as prose from "./vendor/prosemirror.js";

const REFRESH_MS = 300; // after the last key, what is drawn beside the text follows
const TYPING_MS = 3000; // in which the page does not scroll to the word that is said
/** Pixels between the caret and the window's edges, of which the player covers the top. */
const EDGES = { right: 5, bottom: 5, left: 5, get top() { return byId("desk").offsetHeight + 12; } };

/** Takes the mark from doubtful words that were corrected. */
const settled = new prose.Plugin({
  appendTransaction(transactions, { doc: before }, { doc, tr }) {
    if (doc.eq(before) || transactions.some((each) => each.getMeta("composition"))) return null;
    const old = new Set(before.content.content);
    doc.forEach((turn, start) => {
      const changed = old.has(turn) ? [] : wordsOf(turn).filter(({ entry }) => entry.probability === null);
      const entries = new Set(changed.flatMap(({ parts }) => parts.map((part) => part.entry)));
      turn.forEach((node, offset) => {
        const entry = node.marks[0]?.attrs.entry;
        if (!entry || !isDoubtful(entry) || !entries.has(entry)) return;
        const [from, mark] = [start + 1 + offset, { entry: { ...entry, probability: null } }];
        tr.addMark(from, from + node.nodeSize, schema.mark("word", mark));
      });
    });
    return tr.docChanged ? tr : null;
  },
});

/** A turn's elements: its head is not edited. */
class TurnView {
  #name = html`<button tabindex="-1" dir="auto" title="Who says this?" />`;
  #time = html`<button tabindex="-1" class="at" title="Play from here" />`;
  head = html`<p class="head" contenteditable="false">${this.#name}${this.#time}</p>`;
  contentDOM = html`<p class="text" dir="auto" />`;
  dom = html`<div>${this.head}${this.contentDOM}</div>`;

  constructor(turn, editor) {
    this.editor = editor;
    this.turn = turn;
    // The selection stays, whose words get the speaker.
    this.head.onmousedown = (event) => event.preventDefault();
    this.#name.onclick = () => editor.choose(this);
    this.#time.onclick = () => editor.page.onPlay(this.start);
    editor.turns.add(this);
    this.paint();
  }

  get start() {
    return wordsOf(this.turn)[0]?.start ?? this.turn.attrs.start;
  }

  paint() {
    const { speakers, isTold } = this.editor;
    const { speaker } = this.turn.attrs;
    const name = speaker ? speakers.nameOf(speaker) : isTold ? "Unknown speaker" : "Add speaker";
    this.dom.className = `turn ${speaker ? speakers.colourOf(speaker) : ""}`;
    this.#name.className = speaker ? "name" : isTold ? "nobody" : "nobody hint";
    if (this.#name.textContent !== name) this.#name.textContent = name;
    const time = clock(this.start);
    if (this.#time.textContent !== time) this.#time.textContent = time;
  }

  update(turn) {
    this.turn = turn;
    this.paint();
    return true;
  }

  ignoreMutation = ({ target }) => !this.contentDOM.contains(target);
  stopEvent = ({ target }) => this.head.contains(target);
  destroy = () => this.editor.turns.delete(this);
}

export class Editor {
  #view = null; // ProseMirror's
  #answer;
  #timer = 0;
  #typed = -Infinity;
  #made = null; // the last answer that was corrected, and its document
  #now = null; // the word that is marked
  turns = new Set(); // those that ProseMirror shows
  speakers = new Speakers({ speakers: [] });
  isTold = false; // whether speakers are told apart

  /** `page.onRefresh` is called a moment after `onEdit`; `onChoose` lets the user choose whom `give` gets. */
  constructor(place, page) {
    this.place = place;
    this.page = page;
  }

  show(answer, names) {
    const doc = manuscriptOf(answer, names);
    this.#answer = answer;
    this.#made = { doc, answer };
    this.isTold = hasSpeakers(doc, answer);
    this.speakers = new Speakers(answer, names);
    const cut = (state, dispatch) => this.#run(split(state), dispatch) || true;
    const keys = {
      Enter: cut,
      "Shift-Enter": cut,
      Backspace: (state, dispatch) => this.#run(join(state, -1), dispatch),
      Delete: (state, dispatch) => this.#run(join(state, 1), dispatch),
      "Mod-z": prose.undo,
      "Mod-y": prose.redo,
      "Shift-Mod-z": prose.redo,
    };
    const keymaps = [keys, prose.baseKeymap].map(prose.keymap);
    const plugins = [settled, prose.history({ depth: Infinity }), ...keymaps];
    this.#view = new prose.EditorView(this.place, {
      state: prose.EditorState.create({ doc, plugins }),
      nodeViews: { turn: (turn) => new TurnView(turn, this) },
      attributes: {
        role: "textbox",
        "aria-multiline": "true",
        "aria-label": "Transcript",
        lang: answer.language ?? "",
      },
      dispatchTransaction: (transaction) => this.#apply(transaction),
      scrollMargin: EDGES,
      scrollThreshold: EDGES,
      handleClick: (_, position, { detail, target }) => {
        if (detail === 1 && target.closest(".text")) this.page.onPlay(this.#secondAt(position));
        return false;
      },
      clipboardTextSerializer: ({ content: { content: turns } }) =>
        turns.length > 1
          ? linesOf(turns, (speaker) => speaker && this.speakers.nameOf(speaker)).join("\n")
          : turns[0].textContent,
      handleDOMEvents: {
        paste: (view, event) => insert(view, event, event.clipboardData),
        drop: (view, event) => insert(view, event, event.dataTransfer),
        dragstart: (_, event) => (event.preventDefault(), true),
      },
    });
  }

  clear(answer = { speakers: [] }) {
    clearTimeout(this.#timer);
    this.#view?.destroy();
    this.#view = this.#now = this.#made = null;
    CSS.highlights.delete("now");
    this.#answer = answer;
    this.speakers = new Speakers(answer);
  }

  get answer() {
    return this.#view ? this.snapshot()()[0] : this.#answer;
  }

  get names() {
    return this.#view?.state.doc.attrs.names ?? {};
  }

  /** A function that returns the answer and the names as they are now. */
  snapshot() {
    const answer = this.#answer;
    const { doc } = this.#view.state;
    return () => [this.#corrected(answer, doc), doc.attrs.names];
  }

  #corrected(answer, doc) {
    const before = this.#made?.doc;
    if (before?.content !== doc.content || before.attrs.isMoved !== doc.attrs.isMoved)
      this.#made = { doc, answer: corrected(answer, doc) };
    return this.#made.answer;
  }

  isOpen = () => this.#view !== null;

  /** How many corrections can be undone, and done again. */
  get depths() {
    const { state } = this.#view ?? {};
    return state ? [prose.undoDepth(state), prose.redoDepth(state)] : [0, 0];
  }

  undo = () => this.#command(prose.undo);
  redo = () => this.#command(prose.redo);
  rename = (label, name) => this.#run(rename(this.#view.state, label, name));
  unite = (label, other) => this.#run(unite(this.#view.state, label, other));

  /** Give the selected words, or the turn at the caret, to a speaker; null to a new one. */
  give(label, range = undefined) {
    this.#run(assign(this.#view.state, label ?? freeLabel(this.speakers.labels), range));
    this.focus();
  }

  /** Let the user choose who says a turn: all of it, or what is selected of it. */
  choose(turnView = undefined) {
    const { selection, doc } = this.#view.state;
    const { node } = this.#view.domAtPos(selection.from);
    turnView ??= [...this.turns].find(({ dom }) => dom.contains(node));
    if (!turnView) return;
    const start = this.#view.posAtDOM(turnView.contentDOM, 0);
    const end = start + turnView.turn.content.size;
    const isSelected = selection.from < end && selection.to > start && !selection.empty;
    const range = isSelected ? selection : prose.TextSelection.create(doc, start);
    const { speaker } = turnView.turn.attrs;
    const place = turnView.head.firstElementChild;
    this.page.onChoose(place, speaker, (label) => this.give(label, range));
  }

  focus = () => this.#view?.focus();
  hear = () => this.#view.hasFocus() && this.page.onPlay(this.#secondAt(this.#view.state.selection.from));

  /** Select the next (1) or last (-1) doubtful word; returns its second, null if there is none. */
  selectDoubtful(direction) {
    const { doc, selection } = this.#view.state;
    const found = [];
    doc.descendants((node, from) => {
      const entry = node.marks[0]?.attrs.entry;
      if (entry && isDoubtful(entry)) found.push({ from, to: from + node.nodeSize });
    });
    if (!found.length) return null;
    const { from, to } =
      direction > 0
        ? (found.find((each) => each.from >= selection.to) ?? found[0])
        : (found.findLast((each) => each.to <= selection.from) ?? found.at(-1));
    this.#select(from, to);
    return this.#secondAt(from + 1);
  }

  /** Select the first of these words that the text has; they are as `plain` makes them. */
  find(words) {
    const turns = [];
    this.#view?.state.doc.forEach((turn, start) => turns.push([start + 1, plain(turn.textContent)]));
    for (const word of words) {
      const found = turns.find(([, text]) => text.includes(word));
      if (!found) continue;
      const from = found[0] + found[1].indexOf(word);
      this.#select(from, from + word.length);
      return;
    }
  }

  #select(from, to) {
    const { doc, tr } = this.#view.state;
    this.#view.dispatch(tr.setSelection(prose.TextSelection.create(doc, from, to)).scrollIntoView());
    this.focus();
  }

  get doubts() {
    return this.answer.words?.filter(isDoubtful).length ?? 0;
  }

  /** The turns as lines that a server aligns: `LABEL: words`. */
  get script() {
    const nameOf = (speaker) => (this.isTold ? (speaker ?? "Unknown speaker") : "");
    const lines = linesOf(this.#view.state.doc.content.content, nameOf);
    return lines.map((line) => `${line}\n`).join("");
  }

  /** Mark the word that is said; the page scrolls along with a person who watches and does not type. */
  mark(second) {
    const word = this.#view && this.#wordAt(second);
    if (word?.from === this.#now?.from && word?.to === this.#now?.to) return;
    // A highlight, not an element: the text's elements are left to the person who types in them.
    const [before] = CSS.highlights.get("now") ?? [];
    CSS.highlights.delete("now");
    this.#now = word;
    if (!word) return;
    const range = this.#rangeOf(word);
    CSS.highlights.set("now", new Highlight(range));
    const isWatched = !before || isVisible(before);
    if (isWatched && !isVisible(range) && performance.now() - this.#typed > TYPING_MS)
      range.startContainer.parentElement.scrollIntoView({ block: "center" });
  }

  #rangeOf({ from, to }) {
    const range = document.createRange();
    const [start, end] = [this.#view.domAtPos(from, 1), this.#view.domAtPos(to, -1)];
    range.setStart(start.node, start.offset);
    range.setEnd(end.node, end.offset);
    return range;
  }

  #apply(transaction) {
    const before = this.#view.state;
    const state = before.apply(transaction);
    const isTold = this.isTold;
    this.#view.updateState(state);
    if (state.doc === before.doc) return;
    this.#typed = performance.now();
    this.#now = null;
    clearTimeout(this.#timer);
    // Names and speakers that have changed are painted at once.
    const isRecast = state.doc.attrs !== before.doc.attrs;
    if (isRecast) this.#refresh();
    else this.#timer = setTimeout(() => this.#refresh(), REFRESH_MS);
    if (isRecast || isTold !== this.isTold) for (const turn of this.turns) turn.paint();
    this.page.onEdit();
  }

  #refresh() {
    this.isTold = hasSpeakers(this.#view.state.doc, this.#answer);
    this.speakers = new Speakers(this.answer, this.names, this.speakers);
    this.page.onRefresh();
  }

  #run(transaction, dispatch = (made) => this.#view.dispatch(made)) {
    if (transaction) dispatch(transaction.scrollIntoView());
    return Boolean(transaction);
  }

  #command(command) {
    command(this.#view.state, this.#view.dispatch);
    this.focus();
  }

  #secondAt(position) {
    const at = this.#view.state.doc.resolve(position);
    if (!at.depth) return 0;
    const words = wordsOf(at.parent);
    const word = words.find(({ to }) => to >= at.parentOffset) ?? words.at(-1);
    return word?.start ?? at.parent.attrs.start;
  }

  #wordAt(second) {
    let found = null;
    this.#view.state.doc.forEach((turn, start) => {
      if (turn.attrs.start > second || turn.attrs.end < second) return;
      const word = wordsOf(turn).findLast((each) => each.start <= second && second < each.end);
      if (word) found = { from: start + 1 + word.from, to: start + 1 + word.to };
    });
    return found;
  }
}

/** Insert what is pasted or dropped as text: it has no times of its own. */
function insert(view, event, data) {
  event.preventDefault();
  const text = data.getData("text/plain").replace(/\s+/g, " ");
  const { tr } = view.state;
  const place = event.type === "drop" && view.posAtCoords({ left: event.clientX, top: event.clientY });
  if (place) tr.setSelection(prose.TextSelection.near(tr.doc.resolve(place.pos)));
  if (text) view.dispatch(tr.insertText(text).scrollIntoView());
  return true;
}

/** Turns as lines, behind the names that `nameOf` returns for labels. */
function linesOf(turns, nameOf) {
  const spoken = turns.filter(({ textContent }) => textContent.trim());
  return spoken.map(({ attrs, textContent }) => {
    const name = nameOf(attrs.speaker);
    return `${name ? `${name}: ` : ""}${textContent.trim()}`;
  });
}

function isVisible(range) {
  const { top, bottom } = range.getBoundingClientRect();
  return bottom > 0 && top < window.innerHeight;
}
