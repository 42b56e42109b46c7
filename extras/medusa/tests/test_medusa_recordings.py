import json

import pytest

from extras.medusa.recordings import find_recordings, load_samples, spoken_windows
from extras.medusa.tests.stand_ins import tiny_models, write_recordings
from tests.support.tiny_whispers import hears_sound


def test_a_folder_is_every_audio_file_below_it(tmp_path):
    write_recordings(tmp_path / "a", 2, windows=1)
    (tmp_path / "notes.txt").write_text("no recording")
    found = find_recordings(tmp_path)
    assert [each.name for each in found] == ["00.wav", "01.wav"]
    assert {each.language for each in found} == {None}


def test_a_manifest_says_languages_and_texts(tmp_path):
    write_recordings(tmp_path, 2, windows=1)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps([{"audio": "01.wav", "language": "de", "text": "hallo"}]))
    for source in (manifest, tmp_path):
        (found,) = find_recordings(source)
        assert (found.name, found.language, found.text) == ("01.wav", "de", "hallo")


def test_no_recordings_is_said_in_a_line(tmp_path):
    with pytest.raises(ValueError, match="it holds no recordings"):
        find_recordings(tmp_path)
    with pytest.raises(ValueError, match="there is no such folder"):
        find_recordings(tmp_path / "missing")


def test_windows_are_those_of_a_request_and_a_language_is_asked_for_once(tmp_path):
    write_recordings(tmp_path, 2, windows=3)
    asked = []

    def detect(samples):
        asked.append(len(samples))
        return "fr"

    recordings = find_recordings(tmp_path)
    special = tiny_models().special_tokens
    windows = list(spoken_windows(recordings, special, hears_sound, detect, 1.0))
    assert len(windows) >= 6
    assert {each.language for each in windows} == {"fr"}
    assert len(asked) == 2
    assert max(len(each.samples) for each in windows) <= 16_000
    assert len(load_samples(recordings[0])) > 16_000
