"""Splits text tokens into words, and finds the spoken tokens of each word.

    tokens   | I| don|'t| know|,| José|.|        ->   " I"  " don't"  " know,"  " José."

Words are slices of the decoded text, cut only at tokens that end on a whole character, so joined
words equal the text for any tokenizer. Spaces separate words; in languages written without spaces
every token is a word. Punctuation belongs to the word it touches and takes no time. Compare
openai/whisper's `split_to_word_tokens` (`tokenizer.py`) and `merge_punctuations` (`timing.py`).
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
CHARACTER = 4  # tokens, because UTF-8 has at most four bytes
PRONOUNCED = frozenset("&%@#*/\\§")
QUOTES = frozenset("\"'")
APOSTROPHES = frozenset("'\N{RIGHT SINGLE QUOTATION MARK}")
# The most seconds of speech of a word, and more for each letter (half an hour of real speech).
# A letter of a script without case may be a syllable, and a digit, capital or symbol a word.
WORD, LETTER, SYLLABLE, SPELT = 0.65, 0.06, 0.15, 0.5
OPENING = frozenset("¿¡")
OPENING_CATEGORIES = frozenset({"Ps", "Pi", "Pd"})

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class WordTokens:
    """A word and its tokens, `first` to `stop` of the given tokens.

    Tokens `spoken` to `silent`, counted from `first`, are pronounced; the others are punctuation.
    """

    text: str
    first: int
    stop: int
    spoken: int
    silent: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The fewest tokens that decode to whole characters: `first` to `stop` of the given tokens."""

    text: str
    first: int
    stop: int

    @property
    def is_punctuation(self) -> bool:
        return all(map(_is_silent, self.text))


def split_words(tokens: Sequence[int], decode: Decode, language: str | None) -> list[WordTokens]:
    """Return the words of text `tokens`, in order and without gaps.

    `language` is a code; None counts as a language written with spaces. Punctuation that stands
    alone joins the word before it, or the word after it if it opens something or comes first.
    """
    words: list[list[Piece]] = []
    opening: list[Piece] = []
    for group in _groups(pieces(tokens, decode), language not in WITHOUT_SPACES):
        if not all(piece.is_punctuation for piece in group):
            words.append(opening + group)
            opening = []
        elif not words or _opens(group):
            opening += group
        else:
            words[-1] += opening + group
            opening = []
    if opening and words:
        words[-1] += opening
    elif opening:
        words.append(opening)
    return [_word_tokens(word) for word in words]


def pieces(tokens: Sequence[int], decode: Decode) -> list[Piece]:
    """Cut `tokens` wherever the text so far is whole characters; joined, pieces are the text.

    Characters have at most CHARACTER tokens, so the last tokens show whether one is incomplete.
    """
    whole, found = decode(list(tokens)), list[Piece]()
    first = begin = 0
    for stop in range(1, len(tokens) + 1):
        tail = max(first, stop - CHARACTER)
        text = decode(list(tokens[tail:stop]))
        broken = text.endswith(INCOMPLETE)
        if not broken:
            text = decode(list(tokens[first:stop])) if first < tail else text
            broken = text != whole[begin : begin + len(text)]
        if broken and stop < len(tokens):
            continue
        end = len(whole) if stop == len(tokens) else begin + len(text)
        if end > begin:
            found.append(Piece(whole[begin:end], first, stop))
            first, begin = stop, end
    return found


def longest_speech(word: str) -> float:
    """Return the most seconds that a word takes; its digits, symbols and capitals may be words."""
    spoken = [place for place, character in enumerate(word) if not _is_silent(character)]
    if not spoken:
        return WORD
    first, stop = spoken[0], spoken[-1] + 1
    return WORD + sum(map(_seconds, word[first].lower() + word[first + 1 : stop]))


def _seconds(character: str) -> float:
    """Return the most seconds that a character adds to its word."""
    category = unicodedata.category(character)
    if category[0] == "M" or character in APOSTROPHES:
        return 0.0
    if category == "Ll":
        return LETTER
    is_digit = unicodedata.numeric(character, None) is not None
    return SPELT if is_digit or category == "Lu" or category[0] != "L" else SYLLABLE


def _groups(found: Sequence[Piece], spaced: bool) -> Iterator[list[Piece]]:
    """Yield the pieces of each word if `spaced`, else each piece with its combining marks."""
    group: list[Piece] = []
    for piece in found:
        initial = piece.text[0]
        starts = initial.isspace() if spaced else unicodedata.category(initial)[0] != "M"
        if starts and group:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _is_silent(character: str) -> bool:
    """Return whether a character is a space, or punctuation that is not read aloud."""
    punctuation = unicodedata.category(character)[0] == "P"
    return character.isspace() or (punctuation and character not in PRONOUNCED)


def _opens(group: Sequence[Piece]) -> bool:
    """Return whether punctuation that stands alone belongs to the word after it."""
    text = "".join(piece.text for piece in group)
    marks = text.strip()
    if text[0].isspace() and QUOTES.issuperset(marks):
        return True
    return all(
        mark in OPENING or unicodedata.category(mark) in OPENING_CATEGORIES for mark in marks
    )


def _word_tokens(word: Sequence[Piece]) -> WordTokens:
    """Return the word made of `word`'s pieces; punctuation alone counts as spoken."""
    spoken = [piece for piece in word if not piece.is_punctuation] or word
    text, first = "".join(piece.text for piece in word), word[0].first
    return WordTokens(text, first, word[-1].stop, spoken[0].first - first, spoken[-1].stop - first)
