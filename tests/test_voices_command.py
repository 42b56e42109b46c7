"""scripts/voices: a file of voices that its owner alone reads, and its use by other commands."""

import json
from argparse import Namespace

import pytest

from tests.support.audio_files import speech, wav_file
from whosaid.cli.options import parameters
from whosaid.transcribe.live_remote import session_update
from whosaid.transcribe.options import read_demo, read_transcribe
from whosaid.transcribe.voices import read, run

VOICE = {"model": "Net-0", "seconds": 3.5, "embedding": "AAAAAA=="}
OTHER = VOICE | {"seconds": 9.0}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = {"voices": {"SPEAKER_00": VOICE, "SPEAKER_01": OTHER}}
    (tmp_path / "talk.json").write_text(json.dumps(answer))
    (tmp_path / "alone.json").write_text(json.dumps({"voices": {"SPEAKER_00": VOICE}}))
    (tmp_path / "plain.json").write_text('{"text": ""}')
    (tmp_path / "text.txt").write_text("no JSON")
    return tmp_path


def voices(*arguments: str) -> int:
    return run(read([*arguments]))


def test_voices_are_added_listed_and_removed(folder, capsys):
    assert voices("list") == 0
    assert voices("add", "Anna", "--from", "talk.json", "--speaker", "SPEAKER_01") == 0
    assert voices("add", "Bob", "--from", "alone.json") == 0
    assert voices("add", "Anna", "--from", "alone.json") == 0
    file = folder / "voices.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert voices("remove", "Bob") == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert voices("list") == 0
    printed = capsys.readouterr()
    assert printed.out == "Anna\t9.0 s\tNet-0\nAnna\t3.5 s\tNet-0\n"
    assert printed.err.splitlines() == [
        "voices.json does not exist; scripts/voices add NAME FILE adds one",
        "Anna added to voices.json, which now has 1 voices",
        "Bob added to voices.json, which now has 2 voices",
        "Anna added to voices.json, which now has 3 voices",
        "Bob removed from voices.json, which now has 2 voices",
    ]
    assert not [*folder.glob(".*")]


def test_a_voice_that_another_run_adds_meanwhile_stays(folder, monkeypatch):
    def compute(_):
        assert voices("add", "Bob", "--from", "alone.json") == 0
        return {"voices": {"SPEAKER_00": VOICE}, "warnings": []}

    monkeypatch.setattr("whosaid.transcribe.voices._ask", compute)
    assert voices("add", "Anna", "talk.wav") == 0
    names = [each["name"] for each in json.loads((folder / "voices.json").read_text())]
    assert names == ["Bob", "Anna"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "Anna", "--from", "talk.json"], "SPEAKER_01; choose one by --speaker"),
        (["add", "Anna", "--from", "talk.json", "--speaker", "S"], "choose one by --speaker"),
        (["add", "Anna", "--from", "plain.json"], "has voices of nobody"),
        (["add", "Anna", "--from", "text.txt"], "Expecting value"),
        (["add", "Anna", "--from", "none.json"], "No such file"),
        (["add", "SPEAKER_00", "--from", "alone.json"], "should not look like a label"),
        (["add", "anna", "--from", "alone.json"], "two names should differ"),
        (["remove", "Ana"], "voices.json has no voice of Ana"),
        (["list", "--voices", "talk.json"], "is not a file of scripts/voices"),
    ],
)
def test_a_failure_is_one_line_and_changes_nothing(folder, capsys, arguments, said):
    assert voices("add", "Anna", "--from", "alone.json") == 0
    before = (folder / "voices.json").read_text()
    capsys.readouterr()
    assert voices(*arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scripts/voices: ")
    assert said in line
    assert (folder / "voices.json").read_text() == before


@pytest.mark.parametrize(
    "arguments",
    [
        *(["add"], ["add", "Anna"], ["add", "Anna", "a.wav", "--from", "talk.json"]),
        *(["list", "Anna"], ["remove"], ["remove", "Anna", "a.wav"], ["keep", "Anna"]),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        read(arguments)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_recordings_voice_equals_that_of_the_answer(folder, demo_endpoint, monkeypatch, capsys):
    monkeypatch.setattr("handler.load_endpoint", lambda settings: demo_endpoint)
    (folder / "anna.wav").write_bytes(wav_file(speech(4.0), 16_000))
    assert voices("add", "Anna", "anna.wav", "--embedded") == 0
    (entry,) = json.loads((folder / "voices.json").read_text())
    assert entry["name"] == "Anna"
    assert entry["voice"]["model"] == demo_endpoint.diarizer.capabilities.voice_model
    assert entry["voice"]["embedding"] not in "".join(capsys.readouterr())
    assert voices("add", "Anna", "plain.json", "--embedded") == 1


def test_other_commands_take_the_file_as_known_speakers(folder, capsys):
    voices("add", "Anna", "--from", "alone.json")
    (folder / "b.wav").write_bytes(b"Bob's voice")
    anna, bob = {"name": "Anna", "voice": VOICE}, {"name": "Bob", "reference": "Qm9iJ3Mgdm9pY2U="}
    given = ["--voices", "voices.json", "--known-speakers", "b.wav=Bob"]
    assert parameters(read_demo(given)) == {"known_speakers": [anna, bob]}
    unset = ("known_speaker_threshold", "hotwords", "language", "prompt")
    options = Namespace(known_speakers=[anna, bob], **dict.fromkeys(unset))
    update = session_update(options, 16_000, ["", "item.input_audio_transcription.segments"])
    sent = update["session"]["audio"]["input"]["transcription"]["known_speaker_references"]
    assert (json.loads(sent[0]), sent[1]) == (VOICE, bob["reference"])
    with pytest.raises(SystemExit, match="2"):
        read_transcribe(["talk.mp3", "--voices", "none.json"])
    assert "--voices: none.json: No such file" in capsys.readouterr().err
