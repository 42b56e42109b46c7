"""Which language is spoken when, in a recording of several.

Whisper says for every window how likely it is in each language. Over time the likeliest sequence of
languages is taken (Viterbi), where a change costs as much as SWITCH_COST of evidence, so that no
short or doubtful window changes the language alone. A window beside a change, or of which Whisper
is unsure, is cut into pieces between pauses; they are listened to alone, and the sequence is found
again, until every change lies between two pieces.

Evidence is log-probability times seconds of speech, for windows and pieces alike. One rule
therefore weighs a long window against a short one, and a sure piece against a doubtful one, and
where a change lies follows from the same sum as whether there is one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from asr.engine.prefill import LanguagePosterior
from asr.engine.request import DecodeResult
from asr.frontend.schedule import Schedule
from asr.frontend.windows import Window
from payload.languages import language_name
from timebase import SAMPLE_RATE
from viterbi import likeliest_path

# The evidence is log-probability times seconds. No language is less likely than LEAST in a window,
# or one window could outweigh all others: a second of speech then tells at most 4.6 from another.
SWITCH_COST, LEAST = 12.0, 0.01
# A window less likely than this in its language is cut into pieces with so many seconds of speech,
# and a piece beside a change into FINEST ones, of which the language can just be told.
PIECE, FINEST = 2.0, 0.7
SURE = 0.95
# A recording is said to hold another language from so many seconds of speech on, in windows where
# it is so likely.
OTHER_SECONDS, OTHER_PROBABILITY = 5.0, 0.8

Evidence = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LanguageTimeline:
    """Languages by their codes: `languages[i]` is spoken from sample `starts[i]` on.

    `language` is the one with most speech, and `probability` its mean probability where it is
    spoken, weighted by seconds of speech.
    """

    starts: tuple[int, ...] = (0,)
    languages: tuple[str | None, ...] = (None,)
    language: str | None = None
    probability: float | None = None

    @classmethod
    def single(cls, language: str | None, probability: float | None = None) -> LanguageTimeline:
        """One language throughout."""
        return cls((0,), (language,), language, probability)

    @property
    def cuts(self) -> tuple[int, ...]:
        """The samples at which the language changes."""
        return self.starts[1:]

    def language_at(self, position: int) -> str | None:
        """The language that is spoken at a sample."""
        return self.languages[max(0, bisect_right(self.starts, position) - 1)]


# Searches yield the windows that must be heard, and are sent what was heard in each: whoever drives
# one may do something else between two windows.
Search = Generator[Window, LanguagePosterior, LanguageTimeline]


@dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring pieces of a window that are judged together, and their seconds of speech."""

    pieces: tuple[Window, ...]
    posterior: LanguagePosterior
    seconds: float


def find_language(schedule: Schedule, silent_above: float) -> Search:
    """The language of the first window with speech; that of the first where none has any.

    Windows probably hold none whose `no_speech_prob` is above `silent_above`. Where no speech was
    found, that of what is loud.
    """
    first: LanguagePosterior | None = None
    tentative = [each for each in schedule.ready() if each.tentative]
    for window in (*schedule.planned(), *tentative):
        heard = yield window
        if heard.no_speech_prob <= silent_above:
            return LanguageTimeline.single(heard.language, heard.probability)
        first = first or heard
    if first is None:
        return LanguageTimeline()
    return LanguageTimeline.single(first.language, first.probability)


def find_languages(schedule: Schedule) -> Search:
    """The languages of a recording; none where it has no speech.

    Each planned window is heard once, in order, and then pieces of some of them.
    """
    windows = []
    for window in schedule.planned():
        windows.append((window, (yield window)))
    parts: list[_Part] = []
    for window, posterior in windows:
        parts += yield from _halves(window, posterior, schedule)
    if not parts:
        return LanguageTimeline()
    codes = list(parts[0].posterior.probabilities)
    while True:
        path = [codes[index] for index in likeliest_path(_evidence(parts), SWITCH_COST)]
        finer = yield from _refined(parts, path, schedule)
        if len(finer) == len(parts):
            return _timeline(parts, path)
        parts = finer


def _evidence(parts: Sequence[_Part]) -> Evidence:
    """(parts, languages); what probably holds no speech says little."""
    rows = []
    for part in parts:
        probabilities = np.array(list(part.posterior.probabilities.values()), np.float64)
        weight = part.seconds * (1 - part.posterior.no_speech_prob)
        rows.append(weight * np.log(np.maximum(probabilities, LEAST)))
    return np.stack(rows)


_Hearing = Generator[Window, LanguagePosterior, list[_Part]]


def _halves(window: Window, posterior: LanguagePosterior, schedule: Schedule) -> _Hearing:
    """A window and its second half, which is listened to alone: Whisper hears the language that a
    window begins with, in 13 s of German after 12 s of English English too.
    """
    pieces = schedule.pieces(window, PIECE)
    middle = (window.start + window.stop) // 2
    first = sum(piece.start < middle for piece in pieces)
    halves = [(pieces[:first], posterior)]
    if rest := pieces[first:]:
        halves.append((rest, (yield Window(rest[0].start, window.stop, window.stop))))
    return [
        _Part(part, heard, sum(schedule.speech_seconds(piece) for piece in part))
        for part, heard in halves
    ]


def _refined(parts: Sequence[_Part], path: Sequence[str], schedule: Schedule) -> _Hearing:
    """The same parts, or finer ones: an unsure part in its pieces, also an unsure piece beside a
    change, and of a sure part beside a change the piece at the change apart.
    """
    finer: list[_Part] = []
    changes = [one != other for one, other in pairwise(path)]
    for part, language, before, after in zip(
        parts, path, [False, *changes], [*changes, False], strict=True
    ):
        first, *rest = part.pieces
        unsure = part.posterior.probabilities[language] < SURE
        if not rest and unsure and (before or after):
            finest = schedule.pieces(first, FINEST)
            finer += (yield from _heard_alone(finest, schedule)) if len(finest) > 1 else [part]
        elif rest and unsure:
            finer += yield from _heard_alone(part.pieces, schedule)
        elif rest and before:
            (head,) = yield from _heard_alone([first], schedule)
            finer += (head, _Part(tuple(rest), part.posterior, part.seconds - head.seconds))
        elif rest and after:
            (tail,) = yield from _heard_alone(rest[-1:], schedule)
            others = part.pieces[:-1]
            finer += (_Part(others, part.posterior, part.seconds - tail.seconds), tail)
        else:
            finer.append(part)
    return finer


def _heard_alone(pieces: Iterable[Window], schedule: Schedule) -> _Hearing:
    """Pieces, each as a part of its own."""
    parts = []
    for piece in pieces:
        parts.append(_Part((piece,), (yield piece), schedule.speech_seconds(piece)))
    return parts


def _timeline(parts: Sequence[_Part], path: Sequence[str]) -> LanguageTimeline:
    """What was found, with a cut where the part before a change ends."""
    starts, languages = [0], [path[0]]
    for (before, _), (_, language) in pairwise(zip(parts, path, strict=True)):
        if language != languages[-1]:
            starts.append(before.pieces[-1].stop)
            languages.append(language)
    seconds = dict.fromkeys(languages, 0.0)
    for part, code in zip(parts, path, strict=True):
        seconds[code] += part.seconds
    main = max(seconds, key=lambda code: seconds[code])
    likely = sum(
        part.seconds * part.posterior.probabilities[main]
        for part, code in zip(parts, path, strict=True)
        if code == main
    )
    probability = likely / seconds[main] if seconds[main] else None
    return LanguageTimeline(tuple(starts), tuple(languages), main, probability)


@dataclass(frozen=True, slots=True)
class HeardWindow:
    """What a window said of its language while it was decoded, and its `seconds` of speech."""

    window: Window
    language: str | None
    probability: float | None
    seconds: float

    @classmethod
    def of(cls, window: Window, result: DecodeResult, seconds: float) -> HeardWindow:
        """What a window's `result` says of it."""
        return cls(window, result.language, result.language_probability, seconds)


def other_language_warning(language: str | None, heard: Iterable[HeardWindow]) -> tuple[str, ...]:
    """A warning where a recording that was decoded in one `language` clearly holds another."""
    others: dict[str, list[HeardWindow]] = {}
    for each in heard:
        if each.language not in (None, language) and (each.probability or 0) >= OTHER_PROBABILITY:
            others.setdefault(str(each.language), []).append(each)
    seconds = {code: sum(each.seconds for each in found) for code, found in others.items()}
    code = max(seconds, key=lambda code: seconds[code], default=None)
    if code is None or seconds[code] < OTHER_SECONDS:
        return ()
    first = min(each.window.start for each in others[code]) / SAMPLE_RATE
    return (
        f"language: from {first:.1f} s on some of the speech seems to be {language_name(code)} "
        f"({code}); multilingual: true writes each part in its own language",
    )
