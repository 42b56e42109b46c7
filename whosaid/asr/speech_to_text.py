"""The interface of loaded recognition models: samples and options in, recognitions out.

`asr.transcriber` has it for Whisper; other packages know nothing else of the models. The recogniser
also drives its `engine`: `step`, `threads`, and a `scheduler` that it asks for turns and charges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.frontend.target_speaker import Enrolment, Mask
from whosaid.asr.frontend.vad import DetectSpeech
from whosaid.asr.listening import EarlyStart
from whosaid.asr.live_pass import LivePass
from whosaid.asr.transcription import NO_PRIOR, Prior, Transcription
from whosaid.transcript import Chunk


@dataclass(frozen=True, slots=True)
class RecognitionCapabilities:
    """The properties and optional features of recognition models, constant after loading.

    `name` is a Hub id or a path. `languages` are codes; models that are not `multilingual` know
    English alone. `prompts`: `prompt` and `hotwords` are accepted. `drafts`: the source of drafts.
    A recording is cut into windows of at most `window_seconds`. `conditioned`: `start` takes a
    speaker's mask. `enrols`: the encoder attends to an enrolment of the speaker (SE-DiCoW).
    """

    name: str
    window_seconds: float
    multilingual: bool
    languages: tuple[str, ...]
    tasks: tuple[str, ...]
    prompts: bool
    drafts: Literal["assistant", "medusa"] | None = None
    conditioned: bool = False
    enrols: bool = False


class SpeechToText(Protocol):
    """Loaded recognition models, called from any thread; `asr.recogniser` takes the steps of what
    the `start` methods and `live_pass` return.

    `detect_speech` finds speech in samples (n,) at 16 kHz, in samples.
    """

    detect_speech: DetectSpeech

    @property
    def capabilities(self) -> RecognitionCapabilities: ...

    @property
    def windows(self) -> tuple[int, int, int]:
        """The numbers of windows being decoded, of windows that wait for a row, and of rows."""

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        """Return the options with Whisper's language code. Raises InvalidParameter if the models
        cannot follow them, and Unsupported for a prompt to models that take none.
        """

    def find_speech(self, samples: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
        """Return the spans of speech in `samples` (n,) at 16 kHz, in seconds."""

    def enrolment(self, samples: NDArray[np.float32], mask: Mask) -> Enrolment:
        """Return an enrolment for `start`: samples (n,), at most a window's, and their mask."""

    async def start(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        speaker_mask: Mask | None = None,
        enrolment: Enrolment | None = None,
        prior: Prior = NO_PRIOR,
    ) -> Transcription:
        """Find speech and plan windows in small steps. The device is not used before the
        transcription's first step.

        With a `speaker_mask` (`asr.frontend.target_speaker`) only that speaker is written, and the
        mask says where speech is. Raises ValueError for a mask if the models are not `conditioned`.
        If the encoder `enrols`, it attends to the speaker's `enrolment`.
        """

    def start_early(
        self,
        options: TranscriptionOptions,
        seconds: float,
        wake: Callable[[], None],
        prior: Prior = NO_PRIOR,
    ) -> EarlyStart | None:
        """Start a recording of about `seconds` while it is decoded; None if recognition needs the
        whole recording, to detect its languages or to place a client's text.
        """

    def live_pass(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        prefix: tuple[int, ...] = (),
        draft: tuple[int, ...] = (),
    ) -> LivePass:
        """Start one decoding of a live buffer, `samples` (n,), mono at 16 kHz, as one window.

        The text begins with `prefix`, and `draft` guesses the rest, as in `Request`. Raises
        ValueError for samples that are empty or longer than a window. For options that sample or
        ask for beams, the first step raises ValueError.
        """

    def part(self, chunk: Chunk, first: int, stop: int) -> list[Chunk]:
        """Return words `first` to `stop` of the chunk as a chunk; an empty list without words."""

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the UTF-8 of each text token, which may be a part of a character's."""
