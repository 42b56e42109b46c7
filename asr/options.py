"""What a request asks of speech recognition."""

from __future__ import annotations

from dataclasses import dataclass, field

from asr.engine.request import DecodeOptions
from asr.frontend.vad import DEFAULT_OPTIONS, VadOptions


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """How a recording is transcribed.

    `language` is a code or a name, None to detect it: once, or with `multilingual` for each part of
    the recording. `prompt` and `hotwords` are prepended to every window as previous text (Whisper's
    `initial_prompt`), for style and spelling. A `text` is what is said: its words, which need word
    times, are those of the transcript (`asr.given_text`). `decode` says how texts are found and
    which times they have. Its `fallback` is None for the transcriber's. `vad` says what counts as
    speech; None: everything does.
    """

    task: str = "transcribe"
    language: str | None = None
    multilingual: bool = False
    chunk_length_s: int = 30
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    text: str = ""
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    vad: VadOptions | None = DEFAULT_OPTIONS
