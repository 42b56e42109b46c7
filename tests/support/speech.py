"""Speech with word times from espeak-ng and flite, in sentences of a small grammar.

espeak-ng's C library is called through ctypes, because its command line does not tell when words
start. It runs in synchronous mode and is initialised once a process; functions and structures are
those of espeak-ng/speak_lib.h. Its oscillators keep their phase between sentences: samples repeat
exactly only if a new process speaks the same sentences in the same order. Times repeat to 10 ms.

flite's command prints the end of each phone (`-psdur`) but not of each word. So each word is also
spoken alone, which tells how many of the phones are its own."""

import ctypes
import io
import json
import re
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import av
import numpy as np
from numpy.typing import NDArray
from scipy.signal import correlate, fftconvolve, resample_poly

from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Word

GRAMMAR = Path(__file__).with_name("grammar.json")
# Seconds of silence kept around a sentence; samples of a frame; a quieter frame has no speech.
MARGIN, FRAME, QUIET_DB = 0.05, SAMPLE_RATE // 100, -35.0
# Ranges of pitch and speed, by synthesiser.
ESPEAK_PITCH, ESPEAK_SPEED = (35, 65), (130, 190)
FLITE_SPEED, NATURAL_SPEED = (125, 190), 160
FLITE_PITCH = {"kal16": (85, 125), "awb": (95, 145), "slt": (140, 205), "rms": (80, 115)}
# How espeak-ng calls an accent's voice; constants of its library.
FILES = {"en-gb": "gmw/en"}
AUDIO_OUTPUT_SYNCHRONOUS, CHARS_UTF8 = 2, 1
EVENT_LIST_TERMINATED, EVENT_WORD = 0, 1
PARAMETER_RATE, PARAMETER_PITCH = 1, 3
# Sentences: the share of templates, and how many words or digits are drawn.
TEMPLATE_SHARE, RANDOM_WORDS, DIGITS = 0.65, (2, 8), (3, 6)
PLACEHOLDER = re.compile(r"\{(\w+)\}")

Samples = NDArray[np.float32]
Split = Literal["training", "development", "reserved"]


@dataclass(frozen=True)
class Clip:
    """Speech of one voice: float32 mono samples at 16 kHz and its words in order.

    Word times are in seconds from the first sample."""

    samples: Samples
    words: tuple[Word, ...]

    @property
    def duration(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


def clip_from_spans(samples: Samples, words: list[str], spans: list[tuple[float, float]]) -> Clip:
    """Make a clip from samples and the rough start and end of each word, in seconds.

    Spans shrink to the sound in them, and the silence around the sentence is cut."""
    loud = _loud_frames(samples)
    timed = [Word(text, *_shrink(loud, *span)) for text, span in zip(words, spans, strict=True)]
    first = max(0, round((timed[0].start - MARGIN) * SAMPLE_RATE))
    last = min(len(samples), round((timed[-1].end + MARGIN) * SAMPLE_RATE))
    return Clip(samples[first:last], tuple(shift(word, -first / SAMPLE_RATE) for word in timed))


def shift(word: Word, seconds: float) -> Word:
    return replace(word, start=word.start + seconds, end=word.end + seconds)


def _loud_frames(samples: Samples) -> NDArray[np.bool_]:
    """Return which 10 ms frames are within 35 dB of the loudest."""
    count = len(samples) // FRAME
    power = np.square(samples[: count * FRAME].reshape(count, FRAME)).mean(axis=1)
    loud: NDArray[np.bool_] = power > np.max(power) * 10 ** (QUIET_DB / 10)
    return loud


def _shrink(loud: NDArray[np.bool_], start: float, end: float) -> tuple[float, float]:
    """The part of a span from its first to its last loud frame; the span itself where none is."""
    first = round(start * 100)
    hits = np.flatnonzero(loud[first : round(end * 100)])
    if hits.size == 0:
        return start, end
    return max(start, (first + int(hits[0])) / 100), min(end, (first + int(hits[-1]) + 1) / 100)


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


def _speak_espeak(name: str, accent: str, pitch: int, speed: int, sentence: str) -> Clip:
    """Speak lower-case words with variant `name` of `accent`.

    `pitch` is 0-99, `speed` in words a minute."""
    variant = f"{FILES.get(accent, accent)}+{name}"
    samples, starts = _library().speak(variant, pitch, speed, sentence)
    words = sentence.split(" ")
    return clip_from_spans(samples, words, _espeak_spans(words, starts, len(samples) / SAMPLE_RATE))


def _espeak_spans(
    words: list[str], starts: dict[int, float], duration: float
) -> list[tuple[float, float]]:
    """Start and end of each word: it lasts until the next one starts.

    Words that espeak reports as one event share its time in proportion to their letters."""
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


def _speak_flite(name: str, pitch: int, speed: int, sentence: str) -> Clip:
    """Speak lower-case words; `pitch` in Hz on average, `speed` in roughly words a minute."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        stretch = f"duration_stretch={NATURAL_SPEED / speed}"
        options = ["--setf", f"int_f0_target_mean={pitch}", "--setf", stretch]
        printed = _flite(["-voice", name, *options, "-psdur", "-t", sentence, "-o", file.name])
        samples = _read_wave(file.read())
    words = sentence.split(" ")
    return clip_from_spans(samples, words, _flite_spans(words, _phones(printed), name))


def _flite(arguments: list[str]) -> str:
    return subprocess.run(["flite", *arguments], check=True, capture_output=True, text=True).stdout


def _read_wave(content: bytes) -> Samples:
    with wave.open(io.BytesIO(content)) as reader:
        if reader.getframerate() != SAMPLE_RATE:
            raise ValueError("only flite's 16 kHz voices are used")
        data = reader.readframes(reader.getnframes())
    return np.frombuffer(data, np.int16).astype(np.float32) / np.float32(32768)


def _phones(printed: str) -> list[tuple[float, float]]:
    """Start and end of every phone that is not a pause, from lines of `phone:end`."""
    pairs = [entry.rsplit(":", 1) for entry in printed.split()]
    ends = [0.0, *(float(end) for _, end in pairs)]
    return [span for (phone, _), span in zip(pairs, pairwise(ends), strict=True) if phone != "pau"]


@cache
def _phone_count(word: str, voice: str) -> int:
    phones = _flite(["-voice", voice, "-ps", "-t", word, "none"]).split()
    return len(phones) - phones.count("pau")


def _flite_spans(
    words: list[str], phones: list[tuple[float, float]], voice: str
) -> list[tuple[float, float]]:
    """Start and end of each word, by the phones that belong to it.

    Where the sentence has fewer phones than its words alone, each word's share shrinks."""
    bounds = np.cumsum([0, *(_phone_count(word, voice) for word in words)], dtype=float)
    edges = np.round(bounds * len(phones) / bounds[-1]).astype(int)
    return [(phones[first][0], phones[max(first, last - 1)][1]) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class Voice:
    """One speaker; `pitch` is 0-99 for espeak and Hz for flite, `speed` in words a minute."""

    engine: Literal["espeak", "flite"]
    name: str
    accent: str
    pitch: int
    speed: int


@cache
def grammar() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GRAMMAR.read_text())
    return content


def speakers(split: Split) -> tuple[str, ...]:
    voices = grammar()["voices"]
    return tuple(
        voices["espeak_variants"] + voices["flite"] if split == "training" else voices[split]
    )


def espeak_speakers(split: Split) -> tuple[str, ...]:
    return tuple(name for name in speakers(split) if name not in FLITE_PITCH)


def draw_voice(name: str, generator: np.random.Generator) -> Voice:
    """Draw pitch, speed and (for espeak) accent of a speaker with voice `name`."""
    if name in FLITE_PITCH:
        pitch = _draw_between(FLITE_PITCH[name], generator)
        return Voice("flite", name, "en-us", pitch, _draw_between(FLITE_SPEED, generator))
    accent = str(generator.choice(grammar()["voices"]["espeak_accents"]))
    pitch = _draw_between(ESPEAK_PITCH, generator)
    return Voice("espeak", name, accent, pitch, _draw_between(ESPEAK_SPEED, generator))


def speak(voice: Voice, sentence: str) -> Clip:
    """Speak a sentence of lower-case words without punctuation."""
    if voice.engine == "flite":
        return _speak_flite(voice.name, voice.pitch, voice.speed, sentence)
    return _speak_espeak(voice.name, voice.accent, voice.pitch, voice.speed, sentence)


def _draw_between(bounds: tuple[int, int], generator: np.random.Generator) -> int:
    return int(generator.integers(bounds[0], bounds[1] + 1))


@cache
def vocabulary() -> tuple[str, ...]:
    slots = grammar()["slots"].values()
    texts = [*grammar()["templates"], *(entry for entries in slots for entry in entries)]
    return tuple(sorted({word for text in texts for word in PLACEHOLDER.sub("", text).split()}))


def draw_sentence(generator: np.random.Generator) -> str:
    """Draw a sentence: a filled template, or a few random words."""
    if generator.random() < TEMPLATE_SHARE:
        return _fill(_pick(grammar()["templates"], generator), generator)
    count = generator.integers(RANDOM_WORDS[0], RANDOM_WORDS[1] + 1)
    return " ".join(_pick(vocabulary(), generator) for _ in range(count))


def draw_clip(voice: Voice, generator: np.random.Generator) -> Clip:
    return speak(voice, draw_sentence(generator))


def _fill(text: str, generator: np.random.Generator) -> str:
    """Replace every {name} of the template, and those in the replacements."""
    while match := PLACEHOLDER.search(text):
        text = text[: match.start()] + _entry(match.group(1), generator) + text[match.end() :]
    return text


def _entry(name: str, generator: np.random.Generator) -> str:
    entries = grammar()["slots"]
    if name == "digits":
        count = generator.integers(DIGITS[0], DIGITS[1] + 1)
        return " ".join(_pick(entries["digit"], generator) for _ in range(count))
    return _pick(entries[name], generator)


def _pick(entries: Sequence[str], generator: np.random.Generator) -> str:
    return entries[int(generator.integers(len(entries)))]


def through_codec(
    samples: Samples, container: str, codec: str, rate: int, bit_rate: int
) -> Samples:
    """Encode and decode in memory, with the codec's delay removed so that word times stay right."""
    frame = av.AudioFrame.from_ndarray(
        (samples[None] * 32767).clip(-32768, 32767).astype(np.int16), "s16", "mono"
    )
    frame.rate = SAMPLE_RATE
    file = io.BytesIO()
    with av.open(file, mode="w", format=container) as output:
        stream = cast(av.AudioStream, output.add_stream(codec, rate=rate))
        stream.layout, stream.bit_rate = "mono", bit_rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            output.mux(packet)
    file.seek(0)
    resampler = av.AudioResampler("flt", "mono", SAMPLE_RATE)
    with av.open(file, mode="r") as source:
        frames = [part for frame in source.decode(audio=0) for part in resampler.resample(frame)]
    return _aligned(np.concatenate([part.to_ndarray()[0] for part in frames]), samples)


def _aligned(samples: Samples, reference: Samples) -> Samples:
    """`samples` shifted to the best cross-correlation with `reference`, cut to its length."""
    lag = int(np.argmax(correlate(samples, reference, method="fft"))) - len(reference) + 1
    moved = samples[lag:] if lag > 0 else np.pad(samples, (-lag, 0))
    return np.pad(moved[: len(reference)], (0, max(0, len(reference) - len(moved))))


def reverberate(samples: Samples, decay: float, generator: np.random.Generator) -> Samples:
    """Convolve with an impulse and a tail of noise that decays by 60 dB in `decay` seconds."""
    time = np.arange(int(decay * SAMPLE_RATE)) / SAMPLE_RATE
    tail = generator.standard_normal(len(time)) * 10 ** (-3 * time / decay)
    tail *= generator.uniform(0.1, 0.5) / np.linalg.norm(tail)
    tail[0] = 1.0
    wet: Samples = fftconvolve(samples, tail)[: len(samples)].astype(np.float32)
    return wet
