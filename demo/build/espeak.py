"""Speech from espeak-ng with word times.

The C library is called through ctypes, because the command line does not tell when words start. It
runs in synchronous mode and is initialised once a process; functions and structures are those of
espeak-ng/speak_lib.h. Its oscillators keep their phase between sentences: samples repeat exactly
only where a new process speaks the same sentences in the same order. Times repeat to 10 ms.
"""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import pairwise
from math import gcd
from typing import Any, ClassVar

import numpy as np
from scipy.signal import resample_poly

from demo.build.clip import Clip, Samples, clip_from_spans
from timebase import SAMPLE_RATE

AUDIO_OUTPUT_SYNCHRONOUS = 2
CHARS_UTF8 = 1
EVENT_LIST_TERMINATED, EVENT_WORD = 0, 1
PARAMETER_RATE, PARAMETER_PITCH = 1, 3
FILES = {"en-gb": "gmw/en"}


_Pointer = Any


class _Event(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    ]


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Library:
    """The loaded library, with a callback that collects samples and word starts of a sentence."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libespeak-ng.so.1")
        self.rate: int = self.library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, None, 0)
        if self.rate <= 0:
            raise RuntimeError("espeak-ng did not start")
        self.parts: list[np.ndarray[Any, np.dtype[np.int16]]] = []
        self.starts: dict[int, float] = {}
        self.callback = _Callback(self._collect)
        self.library.espeak_SetSynthCallback(self.callback)

    def _collect(self, wav: _Pointer, count: int, events: _Pointer) -> int:
        if wav and count > 0:
            self.parts.append(np.ctypeslib.as_array(wav, (count,)).copy())
        index = 0
        while events[index].type != EVENT_LIST_TERMINATED:
            event = events[index]
            if event.type == EVENT_WORD:
                self.starts.setdefault(event.text_position - 1, event.audio_position / 1000)
            index += 1
        return 0

    def speak(
        self, voice: str, pitch: int, speed: int, sentence: str
    ) -> tuple[Samples, dict[int, float]]:
        """Samples at 16 kHz, and the start in seconds of the word at each character position."""
        self.parts, self.starts = [], {}
        if self.library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice}")
        self.library.espeak_SetParameter(PARAMETER_RATE, speed, 0)
        self.library.espeak_SetParameter(PARAMETER_PITCH, pitch, 0)
        text = sentence.encode()
        self.library.espeak_Synth(text, len(text) + 1, 0, 1, 0, CHARS_UTF8, None, None)
        samples = np.concatenate(self.parts).astype(np.float32) / 32768
        factor = gcd(SAMPLE_RATE, self.rate)
        resampled = resample_poly(samples, SAMPLE_RATE // factor, self.rate // factor)
        return resampled.astype(np.float32), self.starts


@cache
def _library() -> _Library:
    return _Library()


def speak(name: str, accent: str, pitch: int, speed: int, sentence: str) -> Clip:
    """Speak lower-case words with variant `name` of `accent`.

    `pitch` is 0-99, `speed` in words a minute.
    """
    samples, starts = _library().speak(
        f"{FILES.get(accent, accent)}+{name}", pitch, speed, sentence
    )
    words = sentence.split(" ")
    return clip_from_spans(samples, words, _spans(words, starts, len(samples) / SAMPLE_RATE))


def _spans(
    words: list[str], starts: dict[int, float], duration: float
) -> list[tuple[float, float]]:
    """Start and end of each word: it lasts until the next one starts.

    Words that espeak reports as one event share its time in proportion to their letters.
    """
    letters, position = [0], 0
    known = [(0, starts.get(0, 0.0))]
    for word in words:
        if position in starts and position > 0:
            known.append((letters[-1], starts[position]))
        letters.append(letters[-1] + len(word))
        position += len(word) + 1
    known.append((letters[-1], duration))
    times = np.interp(letters, [count for count, _ in known], [time for _, time in known]).tolist()
    return list(pairwise(times))
