"""An engine without a model: subclasses say what is spoken in a window.

It decodes what was added, up to the batch size at once, and returns it by the next step."""

from collections import abc
from dataclasses import fields, replace
from typing import Any

import numpy as np

from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.session import Session
from whosaid.timebase import SAMPLES_PER_TOKEN
from whosaid.transcript import Transcript

# Of every answer, whatever is asked for.
TOLD = ("speakers", "chunks", "text", "language", "language_probability", "duration", "warnings")
RESPONSE_KEYS = {*TOLD, "unwritten"}
DECODE = {each.name for each in fields(DecodeOptions)}


def asking(**named: Any) -> TranscriptionOptions:
    decode = {name: value for name, value in named.items() if name in DECODE}
    others = {name: value for name, value in named.items() if name not in DECODE}
    return TranscriptionOptions(**others, decode=DecodeOptions(**decode))


TIMESTAMPS = 412  # the first token of the made-up vocabulary that is a timestamp


def said_in(samples: np.ndarray, tokens: abc.Sequence[int]) -> DecodeResult:
    """Return a window's text; attention says that the words of a segment share its time evenly."""
    frames = -(-len(samples) // SAMPLES_PER_TOKEN)
    attention = np.zeros((len(tokens) + 1, frames), np.float32)
    segment, start = list[int](), 0
    for place, token in enumerate([*tokens, TIMESTAMPS + frames]):
        if token < TIMESTAMPS:
            segment.append(place)
            continue
        edges = np.linspace(start, token - TIMESTAMPS, len(segment) + 1).round().astype(int)
        for number, row in enumerate(segment):
            attention[row, edges[number] : edges[number + 1]] = 5.0
        segment, start = [], token - TIMESTAMPS
    return DecodeResult(tuple(tokens), 0.0, (-0.1,) * (len(tokens) + 1), 0.0, attention=attention)


class StandInEngine:
    """Remembers its options and requests, and how many windows each step decoded."""

    def __init__(self) -> None:
        self.options: list[DecodeOptions] = []
        self.requests: list[Request] = []
        self.batches: list[int] = []
        self.waiting: dict[Session, list[Request]] = {}

    def session(self, options: DecodeOptions) -> Session:
        self.options.append(options)
        return Session(self, options)

    def detect_language(self, _samples: np.ndarray) -> LanguagePosterior:
        return LanguagePosterior({"en": 0.9, "de": 0.1}, 0.0)

    def add(self, session: Session, requests: abc.Sequence[Request]) -> None:
        self.waiting.setdefault(session, []).extend(requests)

    def cancel(self, session: Session) -> None:
        self.waiting.pop(session, None)

    def step(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for session, requests in waiting.items():
            self.batches.append(len(requests))
            self.requests += requests
            session.finished.extend((request, self.decode(request)) for request in requests)

    def tokens(self, samples: np.ndarray) -> list[int]:
        raise NotImplementedError

    def decode(self, request: Request) -> DecodeResult:
        return said_in(request.samples, self.tokens(request.samples))


def rounded(transcript: Transcript) -> Transcript:
    """A transcript whose probabilities are rounded: they depend on the sizes of batches."""
    chunks = tuple(
        replace(
            chunk,
            words=tuple(replace(w, probability=round(w.probability, 4)) for w in chunk.words),
            avg_logprob=round(chunk.avg_logprob, 4),
            no_speech_prob=round(chunk.no_speech_prob, 4),
            log_probs=(),
        )
        for chunk in transcript.chunks
    )
    certain = transcript.language_probability
    return replace(transcript, chunks=chunks, language_probability=certain and round(certain, 4))
