"""A diarizer that borrows its voices: names, and recordings with too many speakers for it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers

from config import DEMO_MODELS
from tests.support.dialogue import Style, draw_dialogue
from tests.support.speech import Voice, draw_clip
from whosaid.audio.decode import AudioLimits
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Capabilities, Diarization, SpeakerHints
from whosaid.diarization.known_speakers import VoiceEnroller, name_speakers
from whosaid.diarization.voiced import VoicedDiarizer
from whosaid.transcript import SpeakerTurn

CPU = torch.device("cpu")
DEMO = DEMO_MODELS / "diarization"
NO_HINTS = SpeakerHints()
ANNA = Voice("espeak", "f2", "en-us", 50, 160)
BOB = Voice("espeak", "Andy", "en-us", 50, 150)


@dataclass
class Finds:
    """Finds these turns, and embeds nothing."""

    found: Diarization
    capabilities = Capabilities(hints=False, voices=False, streams=True)

    def diarize(self, samples, hints, pause):
        return self.found


@pytest.fixture(scope="module")
def voices():
    return load_diarizer(str(DEMO), None, None, CPU)


@pytest.fixture(scope="module")
def scene():
    return draw_dialogue([ANNA, BOB], 12.0, Style(noise=1e-3), np.random.default_rng(3))


def test_speakers_have_the_names_of_their_clips(voices, scene):
    diarizer = VoicedDiarizer(Finds(Diarization(scene.turns, scene.turns, most_speakers=8)), voices)
    assert (diarizer.capabilities.voices, diarizer.capabilities.hints) == (True, False)
    assert diarizer.capabilities.streams
    limits = AudioLimits(60, 10_000_000)
    enrolment = VoiceEnroller(voices, lambda all_: ((0.0, len(all_) / 16_000),), limits, 16_000)
    for name, voice in (("Bob", BOB), ("Anna", ANNA)):
        generator = np.random.default_rng(9)
        clip = np.concatenate([draw_clip(voice, generator).samples for _ in range(3)])
        enrolment.enrol(name, (0.5 * clip).astype(np.float32))
    found = diarizer.diarize(scene.samples, NO_HINTS)
    named = name_speakers(found, enrolment.known)
    labels = {each.name: each.label for each in named.known_speakers if each.matched}
    assert labels == {"Anna": "SPEAKER_00", "Bob": "SPEAKER_01"}
    spans = found.exclusive_spans()
    assert found.voices.keys() == spans.keys()
    for label, own in spans.items():
        np.testing.assert_array_equal(found.voices[label], voices.embed(scene.samples, own))


def test_a_moment_is_no_voice(voices, scene):
    turns = SpeakerTurn("A", 0.0, 5.0), SpeakerTurn("B", 5.0, 5.02)
    found = VoicedDiarizer(Finds(Diarization(turns, turns, most_speakers=8)), voices)
    assert found.diarize(np.tile(scene.samples, 3), NO_HINTS).voices.keys() == {"A"}


def test_a_full_set_of_speakers_is_left_to_the_pipeline(voices, scene):
    diarizer = VoicedDiarizer(Finds(Diarization(scene.turns, scene.turns, most_speakers=2)), voices)
    assert diarizer.diarize(scene.samples, NO_HINTS) == voices.diarize(scene.samples, NO_HINTS)


@pytest.mark.skipif(
    not hasattr(transformers, "Nemotron3DiarizationConfig"), reason="transformers has it from 5.18"
)
def test_nemotron_loads_with_the_repositorys_voices(monkeypatch, tmp_path):
    def nemotron(name, *_):
        assert name == str(tmp_path)
        return Finds(Diarization((), ()))

    (tmp_path / "config.json").write_text('{"model_type": "nemotron3_diarization"}')
    monkeypatch.setattr("whosaid.diarization.nemotron.load_nemotron", nemotron)
    monkeypatch.setattr("whosaid.diarization.VOICES", DEMO)
    found = load_diarizer(str(tmp_path), None, None, CPU)
    assert isinstance(found, VoicedDiarizer)
    assert found.capabilities.voice_model
    monkeypatch.setattr("whosaid.diarization.VOICES", tmp_path / "absent")
    assert isinstance(load_diarizer(str(tmp_path), None, None, CPU), Finds)
