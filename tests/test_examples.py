"""The examples on the demo's models: they print what the demo's recording says."""

import logging
import re

import pytest

from examples import one_request, one_window
from tests.support.audio_files import wav_file
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.transcribe.__main__ import CONVERSATION

SAID = "good morning how can i help you"


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    samples = decode_audio(CONVERSATION.read_bytes(), 16_000, AudioLimits(300, 2**24)).samples
    path = tmp_path_factory.mktemp("examples") / "sentence.wav"
    path.write_bytes(wav_file(samples[: int(2.6 * 16_000)], 16_000))
    return str(path)


def test_a_request_prints_its_speakers(recording, demo_handler, monkeypatch, capsys, caplog):
    caplog.set_level(logging.INFO, "endpoint")
    monkeypatch.setattr(one_request, "EndpointHandler", lambda settings: demo_handler)
    one_request.main(recording)
    assert f"SPEAKER_00: {SAID}" in capsys.readouterr().out
    assert "2.6 s of audio answered" in caplog.text


def test_a_window_has_one_text_without_drafts_and_with(recording, capsys):
    one_window.main(recording)
    printed = capsys.readouterr().out
    assert re.findall(r"<\|0\.\d\d\|> (.*?)<", printed) == [SAID] * 2
    assert [int(each) > 0 for each in re.findall(r"accepted=(\d+)", printed)] == [False, True]
