"""What the rooms hand each other: who said what, when, as plain frozen values.

The one decision: times are floats in seconds on the clock of the audio as the client sent it;
nothing here knows windows, sampling rates or models. Rounding to the two decimals of the response
happens where the response is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """One spoken word, `start` and `end` in seconds, and who said it where that is known.

    `text` keeps the space before it and the punctuation around it, so that a chunk's words, joined,
    are its text. `probability` is the main model's own, the mean over the word's tokens. `overlap`
    marks a word spoken while another voice is heard.
    """

    text: str
    start: float
    end: float
    speaker: str | None = None
    probability: float | None = None
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """One of Whisper's own segments; `text` keeps its leading space, as the tokenizer gave it.

    `avg_logprob` and `no_speech_prob` are those of the window it was heard in, under OpenAI's
    names; `words` is empty where nobody asked for them.
    """

    text: str
    start: float
    end: float
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """A stretch in which one speaker is heard; turns of different speakers may overlap."""

    speaker: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SpeakerSegment:
    """Text given to one speaker, or to nobody (`None`) where no turn covers it."""

    speaker: str | None
    text: str
    start: float
    end: float
    words: tuple[Word, ...] = ()


@dataclass(slots=True)
class DecodeStats:
    """What decoding one request took, for benchmarks and logs.

    `drafted` counts the drafts that the main model judged: up to and including the first wrong one
    of each row and step. `drafted_rows` counts rows over all steps that drafted for them, so that
    a row gained 1 + accepted / drafted_rows tokens in such a step. Steps shared with other requests
    count for each. Seconds are those of the host's clock.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_rows: int = 0
    steps_by_drafts: dict[int, int] = field(default_factory=dict)
    encode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def acceptance(self) -> float | None:
        """The share of judged drafts that were right; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_step(self) -> float:
        """Tokens a row gained in a step that drafted for it, on average; 1 where there was none."""
        return 1 + self.accepted / max(1, self.drafted_rows)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The whole answer of speech recognition: chunks in order of time, and what to tell the client.

    `language` is Whisper's code ("en") or None where no window held speech to detect it from and
    none was asked for; `language_probability` is its share among all languages, None where it was
    not detected.
    """

    chunks: tuple[Chunk, ...]
    language: str | None
    warnings: tuple[str, ...] = ()
    language_probability: float | None = None
    speech: tuple[tuple[float, float], ...] = ()
    stats: DecodeStats = field(default_factory=DecodeStats, compare=False)

    @property
    def text(self) -> str:
        """All chunks' text, joined as the tokenizer spaced it."""
        return "".join(chunk.text for chunk in self.chunks)
