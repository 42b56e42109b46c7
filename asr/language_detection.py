"""Hears which languages a recording has, one window a step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from torch import Tensor

from asr.engine.engine import DecodeEngine
from asr.engine.fallback import DEFAULT_FALLBACK
from asr.engine.prefill import DetectedLanguage, LanguagePosterior
from asr.frontend.schedule import Schedule
from asr.frontend.windows import Window
from asr.language_timeline import LanguageTimeline, find_language, find_languages
from asr.options import TranscriptionOptions

# Encoder outputs kept from language detection; large-v3's for one window is 4 MB in float16.
MAX_KEPT_ENCODINGS = 16

Steps = Generator[bool, None, LanguageTimeline]
T = TypeVar("T")


class LanguageDetection:
    """Listens to windows of a schedule.

    Of the first, `encodings` keep the encoder's output (1, frames, d_model), which decoding needs
    as well.
    """

    def __init__(self, engine: DecodeEngine, schedule: Schedule) -> None:
        self.encodings: dict[Window, Tensor] = {}
        self._engine, self._schedule = engine, schedule

    def steps(self, options: TranscriptionOptions, any_speech: bool) -> Steps:
        """The languages of the recording, where none was given: that of the first window with
        speech, or with `multilingual` those of its parts.
        """
        if options.language is not None:
            return LanguageTimeline.single(options.language)
        if options.multilingual and any_speech:
            return (yield from _drive(find_languages(self._schedule), self._posterior))
        silent_above = (options.decode.fallback or DEFAULT_FALLBACK).no_speech_threshold
        return (yield from _drive(find_language(self._schedule, silent_above), self._likeliest))

    def _likeliest(self, window: Window) -> DetectedLanguage:
        found = self._engine.detect_language(self._schedule.samples(window))
        self._keep(window, found.encoded)
        return found

    def _posterior(self, window: Window) -> LanguagePosterior:
        found = self._engine.language_posterior(self._schedule.samples(window))
        self._keep(window, found.encoded)
        return found._replace(encoded=None)

    def _keep(self, window: Window, encoded: Tensor | None) -> None:
        if encoded is not None and len(self.encodings) < MAX_KEPT_ENCODINGS:
            self.encodings[window] = encoded


def _drive(search: Generator[Window, T, LanguageTimeline], listen: Callable[[Window], T]) -> Steps:
    """What a search finds, one window a step."""
    try:
        window = next(search)
        while True:
            heard = listen(window)
            yield True
            window = search.send(heard)
    except StopIteration as found:
        timeline: LanguageTimeline = found.value
        return timeline
