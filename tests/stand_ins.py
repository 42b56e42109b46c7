"""An engine without a model: subclasses say what is spoken in a window.

It decodes what was added, up to the batch size at once, and returns it by the next step.
"""

from __future__ import annotations

import numpy as np

from asr.engine.prefill import DetectedLanguage, LanguagePosterior
from asr.engine.request import DecodeOptions, DecodeResult, Request
from transcript import DecodeStats


class StandInEngine:
    """Remembers what it was asked: options, requests, and how many windows each step decoded."""

    def __init__(self) -> None:
        self.options: list[DecodeOptions] = []
        self.requests: list[Request] = []
        self.batches: list[int] = []

    def session(self, options: DecodeOptions) -> StandInSession:
        self.options.append(options)
        return StandInSession(self, options)

    def detect_language(self, _samples: np.ndarray) -> DetectedLanguage:
        return DetectedLanguage("en", 0.9, 0.0)

    def language_posterior(self, _samples: np.ndarray) -> LanguagePosterior:
        return LanguagePosterior({"en": 0.9, "de": 0.1}, 0.0)

    def step(self, session: StandInSession) -> None:
        session.decode()

    def tokens(self, samples: np.ndarray) -> list[int]:
        """What is said in a window."""
        raise NotImplementedError

    def decode(self, request: Request) -> DecodeResult:
        return DecodeResult(tuple(self.tokens(request.samples)), 0.0, (-0.1,), 0.0)


class StandInSession:
    """The interface of `asr.engine.session.Session`."""

    def __init__(self, engine: StandInEngine, options: DecodeOptions) -> None:
        self.engine, self.options, self.stats = engine, options, DecodeStats()
        self.waiting: list[Request] = []
        self.finished: list[tuple[Request, DecodeResult]] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.waiting.clear()

    @property
    def done(self) -> bool:
        return not self.waiting and not self.finished

    @property
    def free_rows(self) -> int:
        return self.options.batch_size - len(self.waiting)

    def add(self, requests: list[Request]) -> None:
        self.waiting += requests

    def decode(self) -> None:
        requests, self.waiting = self.waiting, []
        self.engine.batches.append(len(requests))
        self.engine.requests += requests
        self.finished += [(request, self.engine.decode(request)) for request in requests]

    def take(self) -> list[tuple[Request, DecodeResult]]:
        finished, self.finished = self.finished, []
        return finished
