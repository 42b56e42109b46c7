"""Parses a request's body to the audio as sent, the checked parameters, and options.

This module alone derives the options of speech recognition and diarization from the parameters and
the abilities of the loaded models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from config import InferenceConfig, WrongParameter
from whosaid.asr import DecodeOptions, TranscriptionOptions, VadOptions, with_thresholds
from whosaid.diarization.diarizer import Capabilities, SpeakerHints
from whosaid.errors import InvalidParameter, InvalidRequest
from whosaid.payload.encodings import Base64Text
from whosaid.payload.languages import script_warning

BODY_KEYS = ("inputs", "parameters")
MOST_NAMES = 100  # keys of a body, and of its parameters; unknown names are ignored
# A warning repeats at most this many unknown names, and this many characters of each.
MOST_SHOWN, LONGEST_NAME = 8, 40
# Outputs that show segments or their times.
TIMED = {"srt", "vtt", "tsv", "txt"}

Inputs = str | Base64Text | bytes


class Upload:
    """An audio file as sent; `take` frees it for decoding.

    A request is referenced until it is answered, and its file may have hundreds of megabytes.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs: Inputs | None = inputs
        self._size = len(inputs)

    def __len__(self) -> int:
        return self._size

    def take(self) -> Inputs:
        """Return the file and drop the reference to it; call this once."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None, "a request is answered once"
        return inputs


class TranscriptionRequest(NamedTuple):
    """One checked request.

    `speakers` is None if the request is not diarized. `warnings` name everything that is ignored.
    """

    upload: Upload
    config: InferenceConfig
    options: TranscriptionOptions
    speakers: SpeakerHints | None = None
    warnings: tuple[str, ...] = ()


def read_body(
    data: object, as_text: bool = False
) -> tuple[Inputs, InferenceConfig, tuple[str, ...]]:
    """Return a body's audio as sent, its checked parameters, and warnings about ignored names.

    `as_text` reads parameters as text from a query string or form. Raises InvalidRequest for a
    wrong shape and InvalidParameter for a wrong parameter.
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
        # Hugging Face's toolkit passes bytes, with parameters from the query string.
        config = InferenceConfig.read(parameters, as_text=as_text or isinstance(inputs, bytes))
    except WrongParameter as error:
        raise InvalidParameter(error.reason, error.param) from error
    unknown = {
        "keys": [key for key in data if key not in BODY_KEYS],
        "parameters": InferenceConfig.unknown(parameters),
    }
    warnings = tuple(ignored_names(kind, names) for kind, names in unknown.items() if names)
    script = script_warning(parameters.get("language"))
    return inputs, config, warnings if script is None else (*warnings, script)


def ignored_names(kind: str, names: Sequence[object]) -> str:
    """Return a warning with the first names, cut and escaped: a client may send anything."""
    escaped = [ascii(str(name)[:LONGEST_NAME])[1:-1] for name in names[:MOST_SHOWN]]
    shown = ", ".join(name[:LONGEST_NAME] for name in escaped)
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"unknown {kind} are ignored: {shown}{more}"


def wanted_speakers(config: InferenceConfig, can: Capabilities | None) -> SpeakerHints | None:
    """Return the hints for the diarizer; None if the request is not diarized.

    `can` is None if no diarizer is loaded.
    """
    if can is None or not config.tells_voices_apart:
        return None
    return _hints(config) if can.hints else SpeakerHints()


def unused_wishes(config: InferenceConfig, can: Capabilities | None) -> tuple[str, ...]:
    """Return warnings about ignored parameters for speakers and channels.

    `can` is None if no diarizer is loaded.
    """
    if can is None:
        no_turns = no_hints = no_voices = no_embeddings = "no diarization model is loaded"
    elif not config.diarize:
        no_turns = no_hints = no_voices = no_embeddings = "diarize is false"
    else:
        no_turns = ""
        no_hints = "" if can.hints else "the diarization model takes none"
        no_voices = "" if can.voices else "the diarization model compares no voices"
        no_embeddings = "" if can.voice_model else "the diarization model gives no voices"
    mixed = "" if config.separate else "channels are mixed"
    unused = (
        ("speaker hints are ignored", no_hints, _hints(config) != SpeakerHints()),
        ("known_speakers are ignored", no_voices, bool(config.known_speakers)),
        ("voices are ignored", no_embeddings, config.voices),
        ("output: rttm is empty", no_turns, "rttm" in config.output and not config.separate),
        ("channel_names are ignored", mixed, bool(config.channel_names)),
    )
    return tuple(f"{what}: {why}" for what, why, asked in unused if why and asked)


def wanted_transcription(config: InferenceConfig, by_speaker: bool) -> TranscriptionOptions:
    """Return the options of speech recognition for a request.

    Whisper writes timestamps if the answer shows them, or if speakers or a given text need
    segments. Subtitles, tables and plain text have one line for each segment; without timestamps a
    whole window would be one line.
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
    """Return the options of the speech detector; None if everything counts as speech."""
    if config.vad_filter is False:
        return None
    given = config.vad_parameters
    return VadOptions(**given.model_dump()) if given else VadOptions()


def _hints(config: InferenceConfig) -> SpeakerHints:
    return SpeakerHints(config.num_speakers, config.min_speakers, config.max_speakers)
