"""Hears which languages a recording has, one window a step."""

from __future__ import annotations

from collections.abc import Generator

from torch import Tensor

from asr.engine.engine import DecodeEngine
from asr.engine.fallback import DEFAULT_FALLBACK
from asr.engine.prefill import LanguagePosterior
from asr.frontend.schedule import Schedule
from asr.frontend.windows import Window
from asr.language_timeline import LanguageTimeline, find_language, find_languages
from asr.options import TranscriptionOptions

# Encoder outputs kept from language detection; large-v3's for one window is 4 MB in float16.
MAX_KEPT_ENCODINGS = 16


class LanguageDetection:
    """Listens to windows of a schedule.

    Of the first, `encodings` keep the encoder's output (1, frames, d_model), which decoding needs
    as well.
    """

    def __init__(self, engine: DecodeEngine, schedule: Schedule) -> None:
        self.encodings: dict[Window, Tensor] = {}
        self._engine, self._schedule = engine, schedule

    def steps(
        self, options: TranscriptionOptions, any_speech: bool
    ) -> Generator[bool, None, LanguageTimeline]:
        """The languages of the recording, where none was given: that of the first window with
        speech, or with `multilingual` those of its parts.
        """
        if options.language is not None:
            return LanguageTimeline.single(options.language)
        silent_above = (options.decode.fallback or DEFAULT_FALLBACK).no_speech_threshold
        several = options.multilingual and any_speech
        search = (
            find_languages(self._schedule)
            if several
            else find_language(self._schedule, silent_above)
        )
        try:
            window = next(search)
            while True:
                heard = self._listen(window)
                yield True
                window = search.send(heard)
        except StopIteration as found:
            timeline: LanguageTimeline = found.value
            return timeline

    def _listen(self, window: Window) -> LanguagePosterior:
        found = self._engine.detect_language(self._schedule.samples(window))
        if found.encoded is not None and len(self.encodings) < MAX_KEPT_ENCODINGS:
            self.encodings[window] = found.encoded
        return found._replace(encoded=None)
