"""From a request's body to what is asked for: the first step, which computes nothing.

The body is split into the audio as it came and `InferenceConfig`. What speech recognition and
diarization are asked for follows from that and from what the loaded models can do, once: nothing
after this step decides it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asr import DecodeOptions, TranscriptionOptions, VadOptions, with_thresholds
from config import InferenceConfig
from diarization.diarizer import Capabilities, SpeakerHints
from errors import InvalidParameter, InvalidRequest
from payload.base64_text import Base64Text
from payload.languages import script_warning

BODY_KEYS = ("inputs", "parameters")
# Of a body, and of its parameters; those that nobody knows are ignored.
MOST_NAMES = 100
# What a warning repeats of names that the client made up.
MOST_SHOWN, LONGEST_NAME = 8, 40
# Outputs that show segments or their times.
TIMED = {"srt", "vtt", "tsv", "txt"}

Inputs = str | Base64Text | bytes


@dataclass(slots=True)
class Upload:
    """An audio file as it came, until it is taken to be decoded. Many know a request until it is
    answered, and none of them shall hold on to hundreds of megabytes for so long.
    """

    _inputs: Inputs | None = field(repr=False)
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        assert self._inputs is not None
        self._size = len(self._inputs)

    def __len__(self) -> int:
        """How many bytes came, or characters."""
        return self._size

    def take(self) -> Inputs:
        """The file, which is nowhere else from here on; once."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None, "a request is answered once"
        return inputs


class TranscriptionRequest(NamedTuple):
    """One request, checked: the audio file as it came, its parameters, what speech recognition is
    asked for, what is known of its speakers (None where they are not looked for), and a warning of
    everything in it that is ignored.
    """

    upload: Upload
    config: InferenceConfig
    options: TranscriptionOptions
    speakers: SpeakerHints | None = None
    warnings: tuple[str, ...] = ()


def read_body(
    data: object, as_text: bool = False
) -> tuple[Inputs, InferenceConfig, tuple[str, ...]]:
    """Split a body into the audio as it came, the checked parameters, and a warning for every group
    of ignored names and for a language's script.

    `as_text` reads parameters as those of a query string or form. Raises InvalidRequest for a wrong
    shape and InvalidParameter for a wrong parameter.
    """
    if not isinstance(data, dict):
        raise InvalidRequest("the body should be a JSON object")
    inputs, parameters = data.get("inputs"), data.get("parameters")
    if len(data) > MOST_NAMES:
        raise InvalidRequest(f"the body should have at most {MOST_NAMES} keys")
    if not isinstance(inputs, str | Base64Text | bytes):
        raise InvalidRequest("inputs: should be an audio file in base64")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("parameters: should be a JSON object")
    if len(parameters) > MOST_NAMES:
        raise InvalidRequest(f"parameters: should be at most {MOST_NAMES}")
    try:
        # Bytes come from the older toolkit, which takes their parameters from the query string, as
        # text.
        config = InferenceConfig.read(parameters, as_text=as_text or isinstance(inputs, bytes))
    except ValueError as error:
        raise InvalidParameter(str(error)) from error
    unknown = {
        "keys": [key for key in data if key not in BODY_KEYS],
        "parameters": InferenceConfig.unknown(parameters),
    }
    warnings = tuple(ignored_names(kind, names) for kind, names in unknown.items() if names)
    script = script_warning(parameters.get("language"))
    return inputs, config, warnings if script is None else (*warnings, script)


def ignored_names(kind: str, names: Sequence[object]) -> str:
    """Names the first few in ASCII and cut short: a client may have put anything there."""
    escaped = [ascii(str(name)[:LONGEST_NAME])[1:-1] for name in names[:MOST_SHOWN]]
    shown = ", ".join(name[:LONGEST_NAME] for name in escaped)
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"unknown {kind} are ignored: {shown}{more}"


def wanted_speakers(config: InferenceConfig, can: Capabilities | None) -> SpeakerHints | None:
    """What is known of the speakers, as far as a diarizer takes it; None where nobody looks for
    them, or there is no diarizer, which `can` do nothing.
    """
    if can is None or not config.tells_voices_apart:
        return None
    return _hints(config) if can.hints else SpeakerHints()


def unused_wishes(config: InferenceConfig, can: Capabilities | None) -> tuple[str, ...]:
    """Warns of wishes about speakers that nobody will look at: for want of a diarizer, or of what
    it `can` do.
    """
    if can is None:
        no_turns = no_hints = no_voices = "no diarization model is loaded"
    elif not config.diarize:
        no_turns = no_hints = no_voices = "diarize is false"
    else:
        no_turns = ""
        no_hints = "" if can.hints else "the diarization model takes none"
        no_voices = "" if can.voices else "the diarization model compares no voices"
    mixed = "" if config.separate else "channels are mixed"
    unused = (
        ("speaker hints are ignored", no_hints, _hints(config) != SpeakerHints()),
        ("known_speakers are ignored", no_voices, bool(config.known_speakers)),
        ("output: rttm is empty", no_turns, "rttm" in config.output and not config.separate),
        ("channel_names are ignored", mixed, bool(config.channel_names)),
    )
    return tuple(f"{what}: {why}" for what, why, asked in unused if why and asked)


def wanted_transcription(config: InferenceConfig, by_speaker: bool) -> TranscriptionOptions:
    """Return what speech recognition is to do for a request.

    Whisper writes timestamps if the answer shows them, and if speakers or a given text need
    segments. Subtitles, tables and plain text have a line a segment; without timestamps a whole
    window would be one line.
    """
    shown = config.return_timestamps is not False or not TIMED.isdisjoint(config.output)
    return TranscriptionOptions(
        task=config.task,
        language=config.language,
        multilingual=config.multilingual,
        chunk_length_s=config.chunk_length_s,
        prompt=config.prompt or "",
        hotwords=tuple(config.hotwords),
        text=config.text or "",
        decode=DecodeOptions(
            timestamps=shown or by_speaker or config.text is not None,
            assisted=config.assisted,
            batch_size=config.batch_size,
            num_beams=config.num_beams,
            length_penalty=config.length_penalty,
            temperature=config.temperature or 0.0,
            fallback=with_thresholds(
                config.compression_ratio_threshold,
                config.logprob_threshold,
                config.no_speech_threshold,
            ),
        ),
        vad=_vad_options(config),
    )


def _vad_options(config: InferenceConfig) -> VadOptions | None:
    """What counts as speech; None: everything does."""
    if config.vad_filter is False:
        return None
    given = config.vad_parameters
    return VadOptions(**given.model_dump()) if given else VadOptions()


def _hints(config: InferenceConfig) -> SpeakerHints:
    """What a request says about the number of its speakers."""
    return SpeakerHints(config.num_speakers, config.min_speakers, config.max_speakers)
