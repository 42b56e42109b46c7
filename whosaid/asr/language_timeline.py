"""Finds which language is spoken when, in a recording of several languages.

Whisper estimates the probability of each language in every window, and the likeliest sequence over
time is taken (Viterbi), at SWITCH_COST of evidence a change. A window beside a change, or one whose
language is unsure, is cut into pieces between pauses, whose languages are detected, until every
change lies between two pieces.

Evidence is log-probability times seconds of speech, for windows and pieces alike, so one sum
decides both whether there is a change and at which time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import Window
from whosaid.payload.languages import language_name
from whosaid.timebase import SAMPLE_RATE, likeliest_path

# The evidence is log-probability times seconds. No language is less likely than LEAST in a window,
# or one window could outweigh all others: the evidence of a second of speech is at most 4.6.
SWITCH_COST, LEAST = 12.0, 0.01
# A window whose language is less likely than SURE is cut into pieces of PIECE seconds of speech,
# and a piece beside a change into pieces of FINEST seconds, the shortest with a clear language.
SURE, PIECE, FINEST = 0.95, 2.0, 0.7
# A recording holds another language if at least OTHER_SECONDS of speech lie in windows where that
# language has OTHER_PROBABILITY.
OTHER_SECONDS, OTHER_PROBABILITY = 5.0, 0.8

Evidence = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LanguageTimeline:
    """Languages by their codes: `languages[i]` is spoken from sample `starts[i]` on. `language` is
    the language with most speech; `probability` is its mean there, weighted by seconds.
    """

    starts: tuple[int, ...] = (0,)
    languages: tuple[str | None, ...] = (None,)
    language: str | None = None
    probability: float | None = None

    @classmethod
    def single(cls, language: str | None, probability: float | None = None) -> LanguageTimeline:
        return cls((0,), (language,), language, probability)

    @property
    def cuts(self) -> tuple[int, ...]:
        return self.starts[1:]

    def language_at(self, position: int) -> str | None:
        return self.languages[max(0, bisect_right(self.starts, position) - 1)]


# Returns the probabilities of a window's languages.
Detect = Callable[[Window], Awaitable[LanguagePosterior]]
More = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring pieces of a window that share a posterior, and their seconds of speech."""

    pieces: tuple[Window, ...]
    posterior: LanguagePosterior
    seconds: float


async def find_language(
    schedule: Schedule, silent_above: float, detect: Detect, more: More
) -> LanguageTimeline:
    """Return the language of the first windows with OTHER_SECONDS of speech in all, without those
    whose `no_speech_prob` exceeds `silent_above`: a cough or a word alone may sound like any
    language. If there are none, the first window decides. If the schedule has no speech, its loud
    windows are tried. `more` waits until an incomplete schedule has more windows.
    """
    first: LanguagePosterior | None = None
    heard: list[_Part] = []
    tried, complete = 0, False
    while not complete:
        windows, complete = schedule.planned(), schedule.whole
        if complete and not heard:
            windows += tuple(each for each in schedule.ready() if each.tentative)
        for window in windows[tried:]:
            found = await detect(window)
            first = first or found
            if found.no_speech_prob <= silent_above:
                seconds = schedule.speech_seconds(window) or window.seconds
                heard.append(_Part((window,), found, seconds))
                if window.tentative or sum(part.seconds for part in heard) >= OTHER_SECONDS:
                    complete = True
                    break
        tried = len(windows)
        if not complete:
            await more()
    if heard:
        likeliest = int(np.argmax(_evidence(heard).sum(axis=0)))
        code = list(heard[0].posterior.probabilities)[likeliest]
        return _timeline(heard, [code] * len(heard))
    if first:
        return LanguageTimeline.single(first.language, first.probability)
    return LanguageTimeline()


async def find_languages(schedule: Schedule, detect: Detect) -> LanguageTimeline:
    """Return the languages of a recording; none if it has no speech. They are detected once for
    each planned window, in order, and then for pieces of some windows.
    """
    windows = [(window, await detect(window)) for window in schedule.planned()]
    parts: list[_Part] = []
    for window, posterior in windows:
        parts += await _halves(window, posterior, schedule, detect)
    if not parts:
        return LanguageTimeline()
    codes = list(parts[0].posterior.probabilities)
    while True:
        path = [codes[index] for index in likeliest_path(_evidence(parts), SWITCH_COST)]
        finer = await _refined(parts, path, schedule, detect)
        if len(finer) == len(parts):
            return _timeline(parts, path)
        parts = finer


def _evidence(parts: Sequence[_Part]) -> Evidence:
    """Return the evidence (parts, languages); parts that probably hold no speech weigh little."""
    rows = []
    for part in parts:
        probabilities = np.array(list(part.posterior.probabilities.values()), np.float64)
        weight = part.seconds * (1 - part.posterior.no_speech_prob)
        rows.append(weight * np.log(np.maximum(probabilities, LEAST)))
    return np.stack(rows)


async def _halves(
    window: Window, posterior: LanguagePosterior, schedule: Schedule, detect: Detect
) -> list[_Part]:
    """Return a window's halves, the second with its own posterior: Whisper detects the language
    that a window begins with, in 13 s of German after 12 s of English too.
    """
    pieces = schedule.pieces(window, PIECE)
    middle = (window.start + window.stop) // 2
    first = sum(piece.start < middle for piece in pieces)
    halves = [(pieces[:first], posterior)]
    if rest := pieces[first:]:
        second = Window(rest[0].start, window.stop, window.stop)
        halves.append((rest, await detect(second)))
    return [
        _Part(half, found, sum(schedule.speech_seconds(piece) for piece in half))
        for half, found in halves
    ]


async def _refined(
    parts: Sequence[_Part], path: Sequence[str], schedule: Schedule, detect: Detect
) -> list[_Part]:
    """Return the same parts, or finer ones: an unsure part in pieces, an unsure piece beside a
    change in the finest pieces, and a sure part cut at its piece beside a change.
    """

    async def alone(pieces: Iterable[Window]) -> list[_Part]:
        return [
            _Part((each,), await detect(each), schedule.speech_seconds(each)) for each in pieces
        ]

    finer: list[_Part] = []
    changes = [one != other for one, other in pairwise(path)]
    for part, language, before, after in zip(
        parts, path, [False, *changes], [*changes, False], strict=True
    ):
        first, *rest = part.pieces
        unsure = part.posterior.probabilities[language] < SURE
        if not rest and unsure and (before or after):
            finest = schedule.pieces(first, FINEST)
            finer += (await alone(finest)) if len(finest) > 1 else [part]
        elif rest and unsure:
            finer += await alone(part.pieces)
        elif rest and before:
            (head,) = await alone([first])
            finer += (head, _Part(tuple(rest), part.posterior, part.seconds - head.seconds))
        elif rest and after:
            (tail,) = await alone(rest[-1:])
            finer += (_Part(part.pieces[:-1], part.posterior, part.seconds - tail.seconds), tail)
        else:
            finer.append(part)
    return finer


def _timeline(parts: Sequence[_Part], path: Sequence[str]) -> LanguageTimeline:
    """Return the timeline of a path; a change lies at the end of the part before it."""
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
class WindowLanguage:
    """The language detected while a window was decoded, and the window's `seconds` of speech."""

    window: Window
    language: str | None
    probability: float | None
    seconds: float


def other_language_warning(
    language: str | None, windows: Iterable[WindowLanguage]
) -> tuple[str, ...]:
    others: dict[str, list[WindowLanguage]] = {}
    for each in windows:
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
