"""What a client asks of a live session. Nothing here loads a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from payload.parameters import ReferenceClip

Delay = Literal["minimal", "low", "medium", "high", "xhigh"]


class AudioFormat(Enum):
    """How samples come, mono: signed 16-bit little endian, or G.711; the value has the rate."""

    PCM_24000 = ("audio/pcm", 24000)
    PCM_16000 = ("audio/pcm", 16000)
    PCMU = ("audio/pcmu", 8000)
    PCMA = ("audio/pcma", 8000)

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.value[1]

    @property
    def bytes_per_sample(self) -> int:
        """Two of PCM, one of G.711."""
        return 2 if self.value[0] == "audio/pcm" else 1

    @property
    def bytes_per_second(self) -> int:
        """What a second of audio takes."""
        return self.rate * self.bytes_per_sample


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """When speech begins and ends, with OpenAI's defaults.

    Speech is what the detector finds likelier than `threshold`; it ends where it stays below for
    `silence_duration_ms`, and its audio begins `prefix_padding_ms` earlier.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How a session's audio is heard.

    `language` is a code or a name, None to detect it; `prompt` and `keywords` are as a file's
    `prompt` and `hotwords`. Without `turn_detection` the client commits. `delay` is how long a word
    may be waited for, None for the server's choice. With `speakers` the client is told who says
    what, and `known_speakers` are called by their names, as in a file, where a voice is as similar
    as `known_speaker_threshold`, 0 to 1, or as the embedding model's own asks for (None).
    """

    language: str | None = None
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    turn_detection: TurnSettings | None = TurnSettings()
    delay: Delay | None = None
    speakers: bool = False
    known_speakers: tuple[ReferenceClip, ...] = ()
    known_speaker_threshold: float | None = None
