"""Splits text tokens into words: which tokens a word is made of, and which of those are spoken.

    tokens   | I| don|'t| know|,| José|.|        ->   " I"  " don't"  " know,"  " José."

The one decision: words are slices of the decoded text, cut where a token ends on a whole character,
so that joined they are the text whatever the tokenizer did. What stands between spaces is a word;
languages written without spaces split at every token. Punctuation belongs to the word it touches
and takes no time. Cf. openai/whisper's `tokenizer.py` (`split_to_word_tokens`) and `timing.py`
(`merge_punctuations`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
PRONOUNCED = frozenset("&%@#*/\\§")
QUOTES = frozenset("\"'")
OPENING = frozenset("¿¡")
OPENING_CATEGORIES = frozenset({"Ps", "Pi", "Pd"})

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class WordTokens:
    """A word and its tokens, `first` to `stop` among those given.

    Counted from `first`, those from `spoken` to before `silent` are pronounced; around them is
    punctuation.
    """

    text: str
    first: int
    stop: int
    spoken: int
    silent: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The fewest tokens that make whole characters; `stop` is where they end among the tokens
    given.
    """

    text: str
    first: int
    stop: int

    @property
    def is_punctuation(self) -> bool:
        """Whether nothing of it is spoken."""
        return all(
            character.isspace()
            or (unicodedata.category(character)[0] == "P" and character not in PRONOUNCED)
            for character in self.text
        )


def split_words(tokens: Sequence[int], decode: Decode, language: str | None) -> list[WordTokens]:
    """The words of text `tokens` in a language given by its code; None counts as written with
    spaces.
    """
    words: list[list[Piece]] = []
    ahead: list[Piece] = []
    for group in _groups(pieces(tokens, decode), language not in WITHOUT_SPACES):
        if not all(piece.is_punctuation for piece in group):
            words.append(ahead + group)
            ahead = []
        elif not words or _opens(group):
            ahead += group
        else:
            words[-1] += ahead + group
            ahead = []
    if ahead:
        words[-1:] = [[*(words[-1] if words else []), *ahead]]
    return [_spelled(word) for word in words]


def pieces(tokens: Sequence[int], decode: Decode) -> list[Piece]:
    """`tokens` cut wherever what they say so far is whole characters; joined, the texts are all
    they say.
    """
    whole, found = decode(list(tokens)), list[Piece]()
    first = begin = 0
    for stop in range(1, len(tokens) + 1):
        text = decode(list(tokens[first:stop]))
        broken = text.endswith(INCOMPLETE) or text != whole[begin : begin + len(text)]
        if broken and stop < len(tokens):
            continue
        end = len(whole) if stop == len(tokens) else begin + len(text)
        if end > begin:
            found.append(Piece(whole[begin:end], first, stop))
            first, begin = stop, end
    return found


def _groups(found: Sequence[Piece], spaced: bool) -> Iterator[list[Piece]]:
    """Pieces that nothing separates; a mark written over the letter before it starts no group."""
    group: list[Piece] = []
    for piece in found:
        starts = (
            piece.text[0].isspace() if spaced else unicodedata.category(piece.text[0])[0] != "M"
        )
        if starts and group:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _opens(group: Sequence[Piece]) -> bool:
    """Whether punctuation that stands alone belongs to what follows it."""
    text = "".join(piece.text for piece in group)
    marks = text.strip()
    if text[0].isspace() and QUOTES.issuperset(marks):
        return True
    return all(
        mark in OPENING or unicodedata.category(mark) in OPENING_CATEGORIES for mark in marks
    )


def _spelled(word: Sequence[Piece]) -> WordTokens:
    said = [piece for piece in word if not piece.is_punctuation] or word
    text, first = "".join(piece.text for piece in word), word[0].first
    return WordTokens(text, first, word[-1].stop, said[0].first - first, said[-1].stop - first)
