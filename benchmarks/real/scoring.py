"""Counts errors of a text against its reference, with Whisper's normalisers.

English has a normaliser of its own (numbers, spelling, contractions); every other language gets the
basic one. Languages written without spaces are scored in characters, between which that normaliser
puts spaces (Radford et al. 2022, appendix C). All engines' texts go through the same normaliser.
"""

import warnings
from collections.abc import Callable
from functools import cache

from rapidfuzz.distance import Levenshtein

from benchmarks.counts import Count
from benchmarks.real.manifest import Recording
from whosaid.asr.output.words import WITHOUT_SPACES
from whosaid.payload.languages import ENGLISH


def score(recording: Recording, text: str) -> Count:
    """Count wrong words (characters in languages without spaces) out of the reference's; without a
    reference every word is wrong.
    """
    normalize = normalizer(recording.language)
    expected, found = normalize(recording.text).split(), normalize(text).split()
    if not expected:  # the English normaliser leaves a full stop of three
        found = [word for word in found if any(map(str.isalnum, word))]
    return Count(Levenshtein.distance(expected, found), len(expected))


def plain(word: str) -> str:
    """Return a word as its times are compared: its letters and digits in lower case."""
    return "".join(filter(str.isalnum, word.casefold()))


@cache
def normalizer(language: str | None) -> Callable[[str], str]:
    """Return Whisper's normaliser for a language; None stands for an unknown language."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it leaves a file open
        from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

        if language == ENGLISH:
            english: Callable[[str], str] = EnglishTextNormalizer()
            return english
        basic: Callable[[str], str] = BasicTextNormalizer(split_letters=language in WITHOUT_SPACES)
        return basic
