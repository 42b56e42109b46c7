"""The values that modules exchange: words, chunks, speakers, transcripts.

Times are floats, in seconds from the start of the client's audio; only the response rounds them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

# Ends of sentences in the scripts that Whisper writes.
SENTENCE_ENDS = (
    *".?!…。",
    "\N{FULLWIDTH QUESTION MARK}",
    "\N{FULLWIDTH EXCLAMATION MARK}",
    "\N{HALFWIDTH IDEOGRAPHIC FULL STOP}",
    "\N{ARABIC QUESTION MARK}",
    "\N{ARABIC FULL STOP}",
    "\N{ARMENIAN FULL STOP}",
    "\N{DEVANAGARI DANDA}",
    "\N{DEVANAGARI DOUBLE DANDA}",
    "\N{ETHIOPIC FULL STOP}",
    "\N{ETHIOPIC QUESTION MARK}",
    "\N{MYANMAR SIGN SECTION}",
    "\N{KHMER SIGN KHAN}",
    "\N{TIBETAN MARK SHAD}",
)

# Titles before a name, and other abbreviations that a capital letter may follow in a sentence.
ABBREVIATIONS = re.compile(
    "Mr|Mrs|Ms|Mx|Dr|Dra|Drs|Prof|Profa|Rev|Fr|Hr|St|Ste|Sr|Sra|Srta|Jr|Hon|Gov|Gen|Col|Maj|Capt|Lt|"
    "Sgt|Sen|Rep|Pres|Mgr|Sig|Dott|Avv|Ing|Dipl|Ud|Uds|Vd|Vds|Exmo|Exma|dhr|mevr|mw|"
    "vs|approx|ca|bzw|inkl|exkl|evtl|ggf|vgl|sog|Str|Mio|Mrd|z|d|u|г|др|гр|ул|им|проф|κ|د|डॉ"  # noqa: RUF001
)
# Abbreviations before a number only: "No." before a word is an answer.
BEFORE_NUMBERS = re.compile(
    "No|Nos|no|Nr|nr|Art|Abs|Abb|Kap|Fig|Vol|vol|Ch|Sec|p|pp|pág|núm|стр|ст|гл|рис"
)
ABBREVIATION_PAUSE = 0.5  # seconds of silence after which an abbreviation ends a sentence, too


def ends_sentence(text: str) -> bool:
    """Return whether a sentence ends with this text, ignoring closing quotes and brackets."""
    return _without_quotes(text).endswith(SENTENCE_ENDS)


def _without_quotes(text: str) -> str:
    """Strip space, closing quotes and closing brackets from the end."""
    text = text.rstrip()
    while text and (text[-1] in "\"'" or unicodedata.category(text[-1]) in ("Pe", "Pf", "Pi")):
        text = text[:-1]
    return text


def _without_opening(text: str) -> str:
    """Strip space and punctuation from the start."""
    text = text.lstrip()
    while text and unicodedata.category(text[0])[0] == "P":
        text = text[1:]
    return text


def letters(text: str) -> str:
    """Return a word's letters, digits and marks, without case or width."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(each for each in folded if unicodedata.category(each)[0] in "LMN")


def is_abbreviation(text: str, following: str) -> bool:
    """Return whether `text` ends with an abbreviation, an initial ("J.") or a number ("3.").

    The full stop of such a text need not end a sentence before the text `following`.
    """
    last = _without_quotes(text).rsplit(maxsplit=1)[-1:]
    if not last or not last[0].endswith(".") or last[0].endswith(".."):
        return False
    stem, after = _without_opening(last[0][:-1]), _without_opening(following)[:1]
    if after and unicodedata.category(after) == "Ll" and 1 < len(stem) < 5 and stem.isalpha():
        return True  # etc., usw.
    parts = stem.split(".")
    if len(parts) > 1:  # p.m., z.B.
        return all(len(part) < 3 and part.isalpha() for part in parts)
    if len(stem) == 1 and unicodedata.category(stem) == "Lu":
        return True
    if stem.isascii() and stem.isdigit():  # not a year
        return len(stem) < 4
    numbered = after.isdecimal() and BEFORE_NUMBERS.fullmatch(stem)
    return bool(numbered or ABBREVIATIONS.fullmatch(stem))


@dataclass(frozen=True, slots=True)
class Word:
    """One spoken word, `start` and `end` in seconds, and its speaker if known.

    `text` keeps the space before the word and the punctuation around it: the texts of a chunk's
    words, joined, are the chunk's text. `probability` is the mean of the main model's probabilities
    of the word's tokens. `overlap` marks a word during which another speaker speaks too. `heard` is
    the text that was decoded, if a hot word replaced it.

    In all classes here, `language` is the item's language code, None unless the request is
    `multilingual`. `channel` counts from 0; it is None if channels are mixed.
    """

    text: str
    start: float
    end: float
    speaker: str | None = None
    probability: float | None = None
    overlap: bool = False
    language: str | None = None
    heard: str | None = None

    def later(self, seconds: float) -> Word:
        return replace(self, start=self.start + seconds, end=self.end + seconds)


def sentence_ends_between(word: Word, following: Word) -> bool:
    """Return whether `word` ends a sentence; an abbreviation does so only before a pause."""
    pause = following.start - word.end
    return ends_sentence(word.text) and (
        pause >= ABBREVIATION_PAUSE or not is_abbreviation(word.text, following.text)
    )


@dataclass(frozen=True, slots=True)
class Chunk:
    """One of Whisper's segments; `text` keeps the tokenizer's leading space.

    `avg_logprob`, `no_speech_prob`, `compression_ratio` and `temperature` are openai/whisper's
    values for the chunk's window, which begins at `window_start` seconds. `tokens` are the text's
    token ids; `log_probs` are the natural logarithms of their probabilities. `voice` is the speaker
    of a chunk that was decoded without other speakers (`whosaid.overlap`), else None. Chunks of
    different voices may overlap.
    """

    text: str
    start: float
    end: float
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] = ()
    language: str | None = None
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    temperature: float = 0.0
    compression_ratio: float = 0.0
    window_start: float = 0.0
    channel: int | None = None
    voice: str | None = None

    def later(self, seconds: float) -> Chunk:
        """Return the chunk with all times moved, its words' too."""
        return replace(
            self,
            start=self.start + seconds,
            end=self.end + seconds,
            window_start=self.window_start + seconds,
            words=tuple(word.later(seconds) for word in self.words),
        )


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """A span of time in which one speaker speaks; turns of different speakers may overlap."""

    speaker: str
    start: float
    end: float
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel that was transcribed separately, with its transcript's language."""

    name: str
    language: str | None
    language_probability: float | None


@dataclass(frozen=True, slots=True)
class SpeakerMatch:
    """A name that the client gave, and the speaker with the most similar voice.

    `label` is the diarizer's label of this speaker; the name replaces the label if it `matched`.
    `similarity` is the cosine of the two voices. Both are None if no voices could be compared.
    """

    name: str
    label: str | None = None
    similarity: float | None = None
    matched: bool = False


@dataclass(frozen=True, slots=True)
class SpeakerSegment:
    """Consecutive text of one speaker, if known; `voice` repeats it if segments may overlap."""

    speaker: str | None
    text: str
    start: float
    end: float
    words: tuple[Word, ...] = ()
    language: str | None = None
    channel: int | None = None
    voice: str | None = None


# Items with text, words and a channel.
Block = TypeVar("Block", Chunk, SpeakerSegment)


@dataclass(slots=True)
class DecodeStats:
    """Counts of decoding one request, and the wall-clock seconds of its steps, for benchmarks.

    `drafted` counts the draft tokens of each row and step up to and including the first rejection.
    `drafted_rows` counts pairs of a row and a step with a draft. `retries` counts windows that were
    decoded again (`asr.engine.fallback`). `steps_by_drafts` maps a draft length to its number of
    steps. A step shared with other requests counts for each of them.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_rows: int = 0
    retries: int = 0
    steps_by_drafts: dict[int, int] = field(default_factory=dict)
    decode_seconds: float = 0.0

    @property
    def acceptance(self) -> float | None:
        """Return accepted draft tokens as a share of `drafted`; None without drafts."""
        return self.accepted / self.drafted if self.drafted else None

    def add(self, more: DecodeStats) -> None:
        for each in fields(self):
            before, added = getattr(self, each.name), getattr(more, each.name)
            total = Counter(before) + Counter(added) if isinstance(added, dict) else before + added
            setattr(self, each.name, total)


@dataclass(frozen=True, slots=True)
class Unspoken:
    """Words of a client's text that nobody speaks; `before` spoken words precede them."""

    words: tuple[str, ...]
    before: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Detected speech without words, from `start` to `end` seconds."""

    start: float
    end: float
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """The result of speech recognition: chunks in order of time, and warnings for the client.

    `language` is Whisper's code ("en") of the language with most speech; None if no language was
    requested and nothing was transcribed. `language_probability` is its probability among all
    languages, None if it was not detected. `speech` are the spans of detected speech, (start, end)
    in seconds, in order and disjoint; speaker turns far from all of them are dropped.
    """

    chunks: tuple[Chunk, ...]
    language: str | None
    warnings: tuple[str, ...] = ()
    language_probability: float | None = None
    speech: tuple[tuple[float, float], ...] = ()
    stats: DecodeStats = field(default_factory=DecodeStats, compare=False)
    unspoken: tuple[Unspoken, ...] = ()
    unwritten: tuple[Unwritten, ...] = ()

    @property
    def text(self) -> str:
        """Return the joined texts of all chunks, with the tokenizer's spaces."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def unwritten_warning(self) -> tuple[str, ...]:
        """Return a warning about `unwritten` speech, if there is any."""
        seconds = sum(each.end - each.start for each in self.unwritten)
        return (f"unwritten: {seconds:.1f} s of detected speech have no words",) * (seconds > 0)


def by_channel(blocks: Iterable[Block]) -> defaultdict[int | None, list[Block]]:
    """Group blocks by their channel, in order of first appearance."""
    channels: defaultdict[int | None, list[Block]] = defaultdict(list)
    for block in blocks:
        channels[block.channel].append(block)
    return channels


def by_voice(blocks: Iterable[Block]) -> defaultdict[tuple[int | None, str | None], list[Block]]:
    """Group blocks by channel and voice. Blocks of a group do not overlap."""
    voices: defaultdict[tuple[int | None, str | None], list[Block]] = defaultdict(list)
    for block in blocks:
        voices[block.channel, block.voice].append(block)
    return voices
