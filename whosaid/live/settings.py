"""The settings of a live session. Importing this module loads no model."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from whosaid.payload.parameters import HotWord, ReferenceClip

Delay = Literal["minimal", "low", "medium", "high", "xhigh"]


class AudioFormat(Enum):
    """Mono samples, as media type and rate: signed 16-bit little endian, or G.711.

    PCM has the rates that browsers and sound cards record at.
    """

    PCM_24000 = ("audio/pcm", 24000)
    PCM_8000 = ("audio/pcm", 8000)
    PCM_11025 = ("audio/pcm", 11025)
    PCM_16000 = ("audio/pcm", 16000)
    PCM_22050 = ("audio/pcm", 22050)
    PCM_32000 = ("audio/pcm", 32000)
    PCM_44100 = ("audio/pcm", 44100)
    PCM_48000 = ("audio/pcm", 48000)
    PCM_88200 = ("audio/pcm", 88200)
    PCM_96000 = ("audio/pcm", 96000)
    PCM_176400 = ("audio/pcm", 176400)
    PCM_192000 = ("audio/pcm", 192000)
    PCMU = ("audio/pcmu", 8000)
    PCMA = ("audio/pcma", 8000)

    @property
    def rate(self) -> int:
        return self.value[1]

    @property
    def bytes_per_sample(self) -> int:
        return 2 if self.value[0] == "audio/pcm" else 1

    @property
    def bytes_per_second(self) -> int:
        return self.rate * self.bytes_per_sample


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """Thresholds for the start and the end of a turn of speech, with OpenAI's defaults.

    Speech has a probability above `threshold`. A turn ends after `silence_duration_ms` below it,
    and the turn's audio begins `prefix_padding_ms` before the speech.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How a session's audio is transcribed.

    `language` is a code or a name, None to detect it. `prompt` and `keywords` are the `prompt` and
    `hotwords` of files. Without `turn_detection` the client commits items. `delay` trades latency
    for accuracy; None is the server's choice. With `speakers` the client receives segments with
    speakers. `known_speakers` are named like in files. `known_speaker_threshold` is 0 to 1, or None
    for the embedding model's own.
    """

    language: str | None = None
    prompt: str | None = None
    keywords: tuple[str | HotWord, ...] = ()
    turn_detection: TurnSettings | None = TurnSettings()
    delay: Delay | None = None
    speakers: bool = False
    known_speakers: tuple[ReferenceClip, ...] = ()
    known_speaker_threshold: float | None = None
