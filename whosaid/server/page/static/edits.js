/* Corrections as transactions: turns that are split, joined and given to speakers; speakers that are
   renamed and joined. */

import { cleanName } from "./speakers.js";
import { cut, isOneStretch, joined, spokenBy, wordsOf } from "./manuscript.js";
import { TextSelection, closeHistory } from "./vendor/prosemirror.js";

/** Undo has attributes of the document in its order, as it has the text. */
const recast = (transaction, changes) =>
  Object.entries(changes).reduce((made, change) => made.setDocAttribute(...change), transaction);

/** Rename a speaker; an empty name restores the label. */
export function rename(state, label, name) {
  const { [label]: _, ...names } = state.doc.attrs.names;
  const clean = cleanName(name);
  if (clean && clean !== label) names[label] = clean;
  return closeHistory(recast(state.tr, { names }));
}

/** The turn around a position: its place, and the offset in it. */
function turnAt(doc, position) {
  const at = doc.resolve(position);
  const index = at.depth ? at.index(0) : Math.min(at.index(0), doc.childCount - 1);
  return { index, turn: doc.child(index), offset: at.depth ? at.parentOffset : 0 };
}

/** Put turns in the place of those from `first` up to `end`, with the caret in the first of them. */
function replaced(state, first, end, turns, caret) {
  const { tr, doc } = state;
  const from = doc.resolve(0).posAtIndex(first);
  tr.replaceWith(from, doc.resolve(0).posAtIndex(end), turns);
  return closeHistory(tr.setSelection(TextSelection.create(tr.doc, from + 1 + caret)));
}

/** Split a turn at the caret; null at its start. */
export function split(state) {
  const { index, turn, offset } = turnAt(state.doc, state.selection.from);
  if (!state.selection.empty || !offset) return null;
  const turns = cut(turn, offset);
  return replaced(state, index, index + 1, turns, turns[0].nodeSize);
}

/** Join the turn that begins (-1) or ends (1) at the caret with its neighbour; null elsewhere. */
export function join(state, direction) {
  const { index, turn, offset } = turnAt(state.doc, state.selection.from);
  const isAtEdge = offset === (direction < 0 ? 0 : turn.content.size);
  const first = direction < 0 ? index - 1 : index;
  if (!state.selection.empty || !isAtEdge || first < 0 || first + 1 >= state.doc.childCount)
    return null;
  const [one, other] = [state.doc.child(first), state.doc.child(first + 1)];
  const whole = joined(one, other);
  const caret = whole.content.size - other.content.size;
  const isMoved = one.attrs.speaker !== other.attrs.speaker && other.content.size > 0;
  const transaction = replaced(state, first, first + 2, [whole], caret);
  return isMoved ? recast(transaction, { isMoved }) : transaction;
}

/** Give the selected words, or the turn at the caret, to a speaker; null if they are the speaker's. */
export function assign(state, label, range = state.selection) {
  const { from, to, empty } = range;
  const given = (turn, start) => {
    const [first, last] = [from - start, to - start];
    const { size } = turn.content;
    if (empty) return first >= 0 && first <= size ? [0, size] : null;
    return first < size && last > 0 ? [Math.max(0, first), Math.min(size, last)] : null;
  };
  const pieces = (turn, start) => {
    const part = given(turn, start);
    if (!part || turn.attrs.speaker === label) return [{ turn }];
    return cutOut(turn, ...part).map((piece) =>
      piece.isGiven ? { turn: spokenBy(piece.turn, label), isMoved: true } : piece,
    );
  };
  return moved(state, pieces);
}

/** Let a speaker's turns be another's. */
export function unite(state, label, other) {
  const { [label]: _, ...names } = state.doc.attrs.names;
  const pieces = (turn) =>
    turn.attrs.speaker === label ? [{ turn: spokenBy(turn, other), isMoved: true }] : [{ turn }];
  return moved(state, pieces, { names });
}

/** A turn's part between two offsets, with what is before and behind it; whole words. */
function cutOut(turn, from, to) {
  const touched = wordsOf(turn).filter((word) => word.to > from && word.from < to);
  const [start, end] = touched.length ? [touched[0].from, touched.at(-1).to] : [from, to];
  if (!turn.textBetween(0, start).trim() && !turn.textBetween(end, turn.content.size).trim())
    return [{ turn, isGiven: true }];
  if (!touched.length) return [{ turn }];
  const [before, rest] = cut(turn, start);
  const [given, after] = cut(rest, end - start);
  return [{ turn: before }, { turn: given, isGiven: true }, { turn: after }].filter(
    (piece) => piece.isGiven || piece.turn.content.size,
  );
}

/** Replace turns by pieces of them, of which those that moved join their neighbours. */
function moved(state, pieces, change = {}) {
  const made = [];
  let [start, caret] = [1, null];
  state.doc.forEach((turn) => {
    for (const piece of pieces(turn, start)) {
      const before = made.at(-1);
      const isMoved = before?.isMoved || piece.isMoved;
      const isJoined = before && isMoved && isOneStretch(before.turn, piece.turn);
      if (isJoined) made.pop();
      const whole = isJoined ? joined(before.turn, piece.turn) : piece.turn;
      const offset = whole.content.size - piece.turn.content.size;
      if (piece.isMoved) caret ??= { place: made.length, offset };
      made.push({ turn: whole, isMoved: isJoined ? isMoved : piece.isMoved });
    }
    start += turn.nodeSize;
  });
  if (!caret) return null;
  const [before, after] = [state.doc.content.content, made.map(({ turn }) => turn)];
  const first = after.findIndex((turn, i) => turn !== before[i]);
  let rest = 0;
  while (after.at(-1 - rest) === before.at(-1 - rest)) rest++;
  const turns = after.slice(first, after.length - rest);
  const behind = turns.slice(0, caret.place - first).reduce((sum, turn) => sum + turn.nodeSize, 0);
  const end = before.length - rest;
  const transaction = replaced(state, first, end, turns, behind + caret.offset);
  return recast(transaction, { ...change, isMoved: true });
}

export const freeLabel = (labels) => {
  const all = [...labels, ""].map((_, i) => `SPEAKER_${String(i).padStart(2, "0")}`);
  return all.find((label) => !labels.includes(label));
};
