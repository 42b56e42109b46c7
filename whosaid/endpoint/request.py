"""Parses a request's body to the audio as sent, the checked parameters, and options.

This module alone derives the options of speech recognition and diarization from the parameters and
the abilities of the loaded models.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self, get_args

from config import InferenceConfig, OutputFormat, WrongParameter
from whosaid.answer.cues import LAYOUT
from whosaid.asr import (
    DecodeOptions,
    HotWords,
    Journal,
    Share,
    TranscriptionOptions,
    VadOptions,
    with_thresholds,
)
from whosaid.diarization.diarizer import Capabilities, SpeakerHints
from whosaid.errors import InvalidParameter, InvalidRequest
from whosaid.payload.encodings import Base64Text
from whosaid.payload.languages import script_warning
from whosaid.payload.named_text import spoken_text

BODY_KEYS = ("inputs", "parameters")
MOST_NAMES = 100  # keys of a body, and of its parameters; unknown names are ignored
# A warning repeats at most this many unknown names, and this many characters of each.
MOST_SHOWN, LONGEST_NAME = 8, 40
# Outputs that show segments or their times, that have cues, and that name the recording.
TIMED = {*get_args(OutputFormat)} - {"rttm"}
CUES = {"srt", "vtt"}
TITLED = {"md", "docx", "html", "rttm"}

Inputs = str | Base64Text | bytes
MOST_FILES = 8  # of one request, as many as a file may have channels


class Upload:
    """Audio files as sent; `take` frees them for decoding.

    A request is referenced until it is answered, and its files may have hundreds of megabytes.
    """

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        self._inputs: Sequence[Inputs] | None = inputs
        self._size = sum(map(len, inputs))

    def __len__(self) -> int:
        return self._size

    def take(self) -> Sequence[Inputs]:
        """Return the files and drop the reference to them; call this once."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None, "a request is answered once"
        return inputs


class TranscriptionRequest(NamedTuple):
    """One checked request. `speakers` is None if it is not diarized, `warnings` name what is
    ignored, and `journal` returns the decoded windows of each channel, None if channels are mixed.
    """

    upload: Upload
    config: InferenceConfig
    options: TranscriptionOptions
    speakers: SpeakerHints | None = None
    warnings: tuple[str, ...] = ()
    journal: Callable[[int | None], Journal] | None = None

    def shared_by(self, share: Share) -> Self:
        """Return the request, whose windows take their rows from a share."""
        decode = replace(self.options.decode, share=share)
        return self._replace(options=replace(self.options, decode=decode))


def read_body(
    data: object, as_text: bool = False
) -> tuple[Sequence[Inputs], InferenceConfig, tuple[str, ...]]:
    """Return a body's audio as sent, its checked parameters, which `as_text` are text, and warnings
    about ignored names. Raises InvalidRequest and InvalidParameter.
    """
    if not isinstance(data, dict):
        raise InvalidRequest("the body should be a JSON object")
    inputs, parameters = data.get("inputs"), data.get("parameters")
    if len(data) > MOST_NAMES:
        raise InvalidRequest(f"the body should have at most {MOST_NAMES} keys")
    given = inputs if isinstance(inputs, list) else [inputs]
    files = [each for each in given if isinstance(each, str | Base64Text | bytes)]
    if not files or len(files) < len(given):
        raise InvalidRequest("inputs: should be an audio file in base64, or a list of such files")
    if len(files) > MOST_FILES:
        raise InvalidRequest(f"inputs: should be at most {MOST_FILES} files")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("parameters: should be a JSON object")
    if len(parameters) > MOST_NAMES:
        raise InvalidRequest(f"parameters: should be at most {MOST_NAMES}")
    try:
        # Hugging Face's toolkit passes bytes, with parameters from the query string.
        as_text = as_text or isinstance(files[0], bytes)
        apart = {"channels": "separate"} if len(files) > 1 else {}
        config = InferenceConfig.read({**parameters, **apart}, as_text=as_text)
    except WrongParameter as error:
        raise InvalidParameter(error.reason, error.param) from error
    unknown = {
        "keys": [key for key in data if key not in BODY_KEYS],
        "parameters": InferenceConfig.unknown(parameters),
    }
    warnings = tuple(ignored_names(kind, names) for kind, names in unknown.items() if names)
    script = script_warning(parameters.get("language"))
    return files, config, warnings if script is None else (*warnings, script)


def ignored_names(kind: str, names: Sequence[object]) -> str:
    """Return a warning with the first names, cut and escaped: a client may send anything."""
    escaped = [ascii(str(name)[:LONGEST_NAME])[1:-1] for name in names[:MOST_SHOWN]]
    shown = ", ".join(name[:LONGEST_NAME] for name in escaped)
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"unknown {kind} are ignored: {shown}{more}"


def wanted_speakers(config: InferenceConfig, can: Capabilities | None) -> SpeakerHints | None:
    """Return the hints for the diarizer, if any is wanted. `can` is None if none is loaded."""
    if can is None or not config.tells_voices_apart:
        return None
    return _hints(config) if can.hints else SpeakerHints()


def unused_wishes(config: InferenceConfig, can: Capabilities | None) -> tuple[str, ...]:
    """Return warnings about ignored parameters. `can` is None if no diarizer is loaded."""
    if can is None:
        no_turns = no_hints = no_voices = no_embeddings = "no diarization model is loaded"
    elif not config.diarize:
        no_turns = no_hints = no_voices = no_embeddings = "diarize is false"
    elif config.given_turns:
        no_turns, no_hints, no_voices, no_embeddings = "", *3 * ("text names the speakers",)
    else:
        no_turns = ""
        no_hints = "" if can.hints else "the diarization model takes none"
        no_voices = "" if can.voices else "the diarization model compares no voices"
        no_embeddings = "" if can.voice_model else "the diarization model gives no voices"
    mixed = "" if config.separate else "channels are mixed"
    no_clips = "" if config.known_speakers else "known_speakers are missing"
    output = {*config.output}
    no_cues = "" if CUES & output else "output has neither srt nor vtt"
    no_title = "" if TITLED & output else "output has none of md, docx, html and rttm"
    no_txt = "" if "txt" in output else "output has no txt"
    sampled = "temperature is above 0" if config.temperature else ""
    given = config.model_dump(exclude_defaults=True)
    speaks_for_itself = config.separate or bool(config.given_turns)
    unused = (
        ("speaker hints are ignored", no_hints, _hints(config) != SpeakerHints()),
        ("known_speakers are ignored", no_voices, bool(config.known_speakers)),
        ("voices are ignored", no_embeddings, config.voices),
        ("output: rttm is empty", no_turns, "rttm" in output and not speaks_for_itself),
        ("recording_name is ignored", no_title, "recording_name" in given),
        ("txt_times is ignored", no_txt, config.txt_times),
        ("channel_names are ignored", mixed, bool(config.channel_names)),
        ("channel_starts are ignored", mixed, bool(config.channel_starts)),
        ("known_speaker_threshold is ignored", no_clips, "known_speaker_threshold" in given),
        ("compression_ratio_threshold is ignored", sampled, "compression_ratio_threshold" in given),
        *((f"{name} is ignored", no_cues, name in given) for name in LAYOUT),
    )
    return tuple(f"{what}: {why}" for what, why, asked in unused if why and asked)


def wanted_transcription(config: InferenceConfig, by_speaker: bool) -> TranscriptionOptions:
    """Return the options of speech recognition. Whisper writes timestamps if the answer shows them,
    or if speakers, a given text or a format with a line for each segment need them.
    """
    shown = config.return_timestamps is not False or not TIMED.isdisjoint(config.output)
    return TranscriptionOptions(
        task=config.task,
        language=config.language,
        multilingual=config.multilingual,
        chunk_length_s=config.chunk_length_s,
        prompt=config.prompt or "",
        hotwords=HotWords(tuple(config.hotwords)),
        text=spoken_text(config.text or ""),
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
