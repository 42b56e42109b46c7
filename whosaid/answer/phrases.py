"""Joins words to phrases, between which lines of subtitles may end.

ICU finds the places (UAX 14, "Unicode Line Breaking Algorithm"): at spaces; where words of Chinese,
Thai, Lao, Khmer and Burmese end, by its dictionaries; where phrases of Japanese end. Numbers stay
whole, and punctuation stays with its word.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from icu4py.breakers import CharacterBreaker, LineBreaker

from whosaid.transcript import Word

MAX_COLUMNS = 42
LOCALE = "ja@lw=phrase"  # other locales divide Japanese phrases, Chinese and Korean words
# Characters that adults read a second, by Netflix's "Timed Text Style Guides". Languages of narrow
# letters have 17 or more; English has 20.
NARROW, JAPANESE, KOREAN, CHINESE = 17, 4, 12, 9
SURROGATES = re.compile("[\ud800-\udfff]")  # alone; ICU takes none
KANA, HANGUL = re.compile("[\u3041-\u30ff]"), re.compile("[\uac00-\ud7a3]")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that stay on one line. They are `columns` wide, without the space before them if they
    are `spaced`, and are read in `seconds`.
    """

    words: tuple[Word, ...]
    columns: int
    spaced: bool
    seconds: float


def phrases_of(words: Sequence[Word], columns: int) -> list[Phrase]:
    """Return phrases of a speaker's non-empty words; any wider than `columns` is divided."""
    text = "".join(word.text for word in words)
    wide = JAPANESE if KANA.search(text) else KOREAN if HANGUL.search(text) else CHINESE
    ends = {*accumulate(map(count_letters, _parts(text)))}
    found: list[Phrase] = []
    group: list[Word] = []
    letters = 0
    for word in words:
        group.append(word)
        letters += count_letters(word.text)
        if letters in ends:
            parts = [group] if _phrase(group, wide).columns <= columns else [[w] for w in group]
            found += (_phrase(part, wide) for part in parts)
            group = []
    return found


def _phrase(words: Sequence[Word], wide: int) -> Phrase:
    text = "".join(word.text for word in words)
    widths = [*map(_columns, unicodedata.normalize("NFC", on_one_line(text)))]
    seconds = (widths.count(1) + text[:1].isspace()) / NARROW + widths.count(2) / wide
    return Phrase(tuple(words), sum(widths), text[:1].isspace(), seconds)


def split_word(word: Word, columns: int) -> Iterator[Word]:
    """Yield the word or, if it is wider than `columns`, its parts between which lines may end; of
    parts wider than a line, every few letters. A block without word times is one word.
    """
    if display_width(word.text.strip()) <= columns:
        yield word
        return
    parts: list[str] = []
    for part in _parts(word.text):
        letters = [part]
        if display_width(part.strip()) > MAX_COLUMNS:
            letters = [*CharacterBreaker(part, LOCALE)]
        parts += ("".join(letters[at : at + 5]) for at in range(0, len(letters), 5))
    yield from share_time(word, parts)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts of a text between which a line may end, with the spaces behind them."""
    yield from LineBreaker(SURROGATES.sub("\ufffd", text), LOCALE)


def share_time(word: Word, parts: Sequence[str]) -> Iterator[Word]:
    """Yield the parts as words that share the time of `word` in proportion to their letters."""
    seconds_per_letter = (word.end - word.start) / max(1, sum(map(len, parts)))
    start = word.start
    for part in parts:
        end = start + len(part) * seconds_per_letter
        yield replace(word, text=part, start=start, end=end)
        start = end


def count_letters(text: str) -> int:
    """Return the number of letters without spaces."""
    return sum(map(len, text.split()))


def on_one_line(text: str) -> str:
    """Join the words with single spaces: line breaks and tabs are syntax in every format."""
    return " ".join(text.split())


def display_width(text: str) -> int:
    """Return the width of `text` in columns; East Asian wide characters take two, marks none."""
    return len(text) if text.isascii() else sum(map(_columns, unicodedata.normalize("NFC", text)))


@lru_cache(4096)
def _columns(letter: str) -> int:
    category = unicodedata.category(letter)
    if category[0] == "M" or category == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
