"""`scripts/transcribe` and `scripts/demo` against a scripted server, and the real one."""

import base64
import json
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest

from config import REPOSITORY
from tests.helpers.live_app import serving
from tests.helpers.programs import run_python
from tests.helpers.transcription_server import (
    ANSWER,
    DECODED,
    FILES,
    HALF,
    INFO,
    FakeHandler,
    FakeServer,
    full_answer,
    refuse,
    stream,
)
from tests.support.audio_files import request_body, speech
from whosaid.transcribe import __main__ as program
from whosaid.transcribe.__main__ import main, run
from whosaid.transcribe.client import Client
from whosaid.transcribe.options import read_transcribe
from whosaid.transcribe.recordings import Recording
from whosaid.transcribe.screen import Run


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("a.ogg", "deep/b.WAV", "deep/notes.pdf", ".hidden/c.wav"):
        path = tmp_path / "talks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        os.utime(path, (1_000_000, 1_000_000))
    return tmp_path / "talks"


def kept(path: Path) -> tuple[dict, dict, dict]:
    """Return the parts of a JSON file: the recording, its settings, and the answer."""
    answer = json.loads(path.read_text("utf-8"))
    return answer.pop("recording"), answer.pop("made_with"), answer


def answer_otherwise(handler: FakeHandler, body: dict) -> None:
    answer = full_answer(body)
    answer["output"] = {name: f"new {text}" for name, text in answer["output"].items()}
    handler.send(200, json.dumps(answer).encode())


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_folder_gets_its_files_and_is_sent_once(fake, folder, capsys):
    fake.replies = [stream(DECODED, HALF)]
    before = tree(folder)
    options = ["--language", "de", "--words", "--num-speakers", "3", "--hotwords", "Ada, Zuse"]
    options += ["--channels", "separate", "--channel-names", "agent,customer"]
    assert main(["transcribe", str(folder), "--url", fake.url, *options]) == 0
    endings = ("json", "srt", "vtt", "txt")
    written = {f"{stem}.{ending}" for stem in ("a", "deep/b") for ending in endings}
    assert tree(folder) == before | written
    recording, made, answer = kept(folder / "a.json")
    assert answer == {**ANSWER, "output": FILES}  # channels tell who speaks when
    assert [*json.loads((folder / "a.json").read_text("utf-8"))][:2] == ["recording", "made_with"]
    place = sha256(str(folder / "a.ogg").encode()).hexdigest()[:20]
    about = {"name": "a.ogg", "size": 5, "modified": 1_000_000 * 10**9, "path_sha256": place}
    assert recording == about | {"sha256": sha256(b"a.ogg").hexdigest()}
    parameters = fake.bodies[0]["parameters"]
    assert made["models"] == {"model": "openai/whisper-base", "diarization": False}
    assert made["parameters"] | {"output": parameters["output"]} == parameters
    assert (folder / "deep/b.srt").read_text("utf-8") == FILES["srt"]
    channels = {"channels": "separate", "channel_names": "agent,customer"}
    asked = {"language": "de", "return_timestamps": "word", "num_speakers": 3}
    formats = ["srt", "vtt", "txt", "tsv", "rttm"]
    expected = asked | channels | {"hotwords": "Ada, Zuse", "output": formats}
    assert fake.bodies[0]["parameters"] == expected
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3
    assert shown[1].startswith("[2/2] ")
    assert shown[2].startswith("2 recordings: 2 done; 2:02 of audio in ")

    again = ["transcribe", str(folder), "--url", fake.url, *options]
    assert main(again) == 0
    told = "2 recordings: 0 done, 2 done before (--force transcribes them again)\n"
    assert capsys.readouterr().err == told
    one = ["transcribe", str(folder / "a.ogg"), "--url", fake.url, *options]
    assert main(one) == 0
    told = "1 recording: 0 done, 1 done before (--force transcribes it again)\n"
    assert capsys.readouterr().err == told
    assert len(fake.bodies) == 2
    # A recording that was touched is the same, and one that changed is not.
    later = (folder / "deep/b.json").stat().st_mtime + 10
    os.utime(folder / "deep/b.WAV", (later, later))
    assert main(again) == 0
    assert len(fake.bodies) == 2
    (folder / "deep/b.WAV").write_bytes(b"deep/c.WAV")
    capsys.readouterr()
    assert main(again) == 0
    assert len(fake.bodies) == 3
    reason = "because the answer is for an earlier version of the recording"
    told = f"{folder / 'deep/b.WAV'}: transcribed again, {reason}"
    assert capsys.readouterr().err.splitlines()[0] == told
    assert main([*one, "--force"]) == 0
    assert len(fake.bodies) == 4
    assert tree(folder) == before | written


def test_another_model_of_the_server_is_new_work(fake, folder, capsys):
    given = ["transcribe", str(folder / "a.ogg"), "--url", fake.url]
    assert main(given) == 0
    fake.info = {"model": "openai/whisper-small", "diarization": False}
    assert main(given) == 0
    assert len(fake.bodies) == 2
    reason = "because the answer was made with other models (model was openai/whisper-base)"
    assert f", {reason}\n" in capsys.readouterr().err
    fake.info = None  # hf-serve
    for _ in range(2):
        assert main(given) == 0
    assert len(fake.bodies) == 3


def folders_of_one_name(tmp_path: Path, *names: str) -> list[Path]:
    paths = [tmp_path / "named" / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(path).encode())
    return paths


def answer_by_recording(handler: FakeHandler, body: dict) -> None:
    answer = full_answer(body) | {"text": base64.b64decode(body["inputs"]).decode()}
    handler.send(200, json.dumps(answer).encode())


def test_recordings_of_one_name_keep_their_folders(fake, tmp_path):
    fake.replies = [answer_by_recording]
    paths = folders_of_one_name(tmp_path, "a/x.mp3", "b/x.mp3", "x.mp3")
    out = tmp_path / "out"
    for named in (paths, [paths[0].parent, paths[1].parent, paths[2]]):
        given = ["transcribe", *map(str, named), "--output-dir", str(out), "--url", fake.url]
        assert main(given) == 0
        for path in paths:
            answer = out / path.relative_to(tmp_path / "named").with_suffix(".json")
            assert kept(answer)[2]["text"] == str(path)
    assert len(tree(out)) == 3 * 4
    assert len(fake.bodies) == 3


def test_another_recording_of_one_name_is_not_taken_as_done(fake, tmp_path, capsys):
    """Size and time of change are equal too; the second answer does not overwrite the first."""
    fake.replies = [answer_by_recording]
    paths = folders_of_one_name(tmp_path, "a/x.mp3", "b/x.mp3")
    for path in paths:
        os.utime(path, (1_000_000, 1_000_000))
    given = ["--output-dir", str(tmp_path / "out"), "--url", fake.url]
    answer = tmp_path / "out" / "x.json"
    assert main(["transcribe", str(paths[0]), *given]) == 0
    capsys.readouterr()
    assert main(["transcribe", str(paths[1]), *given]) == 1
    assert capsys.readouterr().err == (
        f"{paths[1]}: {answer}: is the answer to another recording, x.mp3, and not to"
        f" {paths[1]}; --force overwrites it, --output-dir writes elsewhere\n"
    )
    text = ["--text", __file__]
    assert main(["transcribe", str(paths[1]), *given, *text]) == 1
    assert kept(answer)[2]["text"] == str(paths[0])
    # The same recording at another place is done, and a changed one at its own place is not.
    (tmp_path / "elsewhere").mkdir()
    moved = paths[0].rename(tmp_path / "elsewhere" / "x.mp3")
    assert main(["transcribe", str(moved), *given]) == 0
    assert len(fake.bodies) == 1
    moved.rename(paths[0])
    paths[0].write_bytes(b"changed")
    assert main(["transcribe", str(paths[0]), *given]) == 0
    assert kept(answer)[2]["text"] == "changed"
    assert main(["transcribe", str(paths[1]), *given, "--force"]) == 0
    assert kept(answer)[2]["text"] == str(paths[1])


def test_recordings_of_one_stem_do_not_replace_each_other(fake, tmp_path):
    fake.replies = [answer_by_recording]
    mp3, wav = folders_of_one_name(tmp_path, "x.mp3", "x.wav")
    assert main(["transcribe", str(mp3), "--url", fake.url]) == 0
    assert main(["transcribe", str(wav), "--url", fake.url]) == 1
    assert kept(mp3.with_suffix(".json"))[2]["text"] == str(mp3)
    mp3.with_suffix(".ogg").write_bytes(b"ogg")
    assert main(["transcribe", str(mp3.parent), "--url", fake.url]) == 0
    assert kept(mp3.with_suffix(".json"))[2]["text"] == str(mp3)
    assert mp3.with_suffix(".ogg.json").exists()
    # A recording and its answer that are renamed together belong together.
    for path in (mp3, mp3.with_suffix(".json")):
        path.rename(path.with_stem("y"))
    assert main(["transcribe", str(mp3.with_stem("y")), "--url", fake.url]) == 0
    assert len(fake.bodies) == 3


@pytest.mark.parametrize(
    ("names", "done"),
    [
        (("a.WAV", "a.wav"), 2),
        (("gr\u00fcn.mp3", "gru\u0308n.mp3"), 2),
        (("a/x.mp3", "A/x.mp3"), 2),
        (("a.mp3", "a.wav", "a.wav.ogg", "b.ogg"), 2),
        (("a.wav", "a.mp3", "a.wav.json", "a.wav.ogg"), 3),
    ],
)
def test_only_recordings_whose_files_collide_are_left_out(fake, tmp_path, capsys, names, done):
    """The file system distinguishes case and Unicode forms, as Linux's do."""
    paths = folders_of_one_name(tmp_path, *names)
    before = tree(tmp_path)
    out = ["--output-dir", str(tmp_path / "out")] if "/" in names[0] else []
    assert main(["transcribe", *map(str, paths), "--url", fake.url, *out]) == (done < len(paths))
    assert len(tree(tmp_path)) == len(before) + 4 * done
    failed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == len(paths) - done == len(paths) - len(fake.bodies)
    assert all(sum(str(path) in line for path in paths) >= 2 for line in failed)


class Kept(dict):
    """An answer that was read, which can be followed."""


def test_kept_answers_are_read_one_at_a_time(fake, folder, monkeypatch):
    """Answers of thousands of hours are larger than the memory, and take minutes to read."""
    read: list[weakref.ref[Kept]] = []
    held: list[int] = []
    read_answer = Recording.kept_answer

    def followed(recording: Recording) -> Kept | None:
        held.append(sum(each() is not None for each in read))
        answer = read_answer(recording)
        if answer is None:
            return None
        read.append(weakref.ref(kept := Kept(answer)))
        return kept

    for number in range(4):
        (folder / f"{number}.wav").write_bytes(b"sound")
    arguments = ["transcribe", str(folder), "--url", fake.url]
    assert main(arguments) == 0
    monkeypatch.setattr(Recording, "kept_answer", followed)
    assert main(arguments) == 0
    assert len(read) == 6  # whether they are done
    assert main([*arguments, "--output-format", "json,tsv"]) == 0
    assert (folder / "3.tsv").read_text("utf-8") == FILES["tsv"]
    assert len(read) == 6 + 3 * 6  # whether they have the format, for it, and what it replaces
    assert set(held) <= {0, 1}  # its own, while one is replaced
    assert len(fake.bodies) == 6


def test_unspoken_parts_of_a_text_are_shown(fake, folder, capsys):
    """Each part is one line, however long, with either command."""

    def miss(handler: FakeHandler, body: dict) -> None:
        left = [
            {"text": " (She\nlaughs.)", "words_before": 2, "timestamp": [66.42, 67.1]},
            {"text": " and so on" * 1000, "words_before": 2, "timestamp": [70.0, 70.0]},
            {"text": "等等" * 1000, "words_before": 2, "timestamp": [70.0, 70.0]},
        ]
        answer = {**full_answer(body), "language": "en", "unspoken": left}
        handler.send(200, json.dumps(answer).encode())

    fake.replies = [miss, miss]
    path = str(folder / "a.ogg")
    assert main(["transcribe", path, "--url", fake.url]) == 0
    _, laughter, rest, without_spaces = capsys.readouterr().err.splitlines()
    assert laughter == f"{path}: not spoken at 1:06: (She laughs.)"
    assert rest.startswith(f"{path}: not spoken at 1:10: and so on and so on")
    assert len(rest) < len(path) + 130
    assert without_spaces.startswith(f"{path}: not spoken at 1:10: 等等等")
    assert len(without_spaces) < len(path) + 130
    assert main(["demo", path, "--url", fake.url]) == 0
    assert "not spoken at 1:06: (She laughs.)" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("parallel", "status", "detail", "told"),
    [
        ("4", 401, "UNAUTHORIZED: no", "UNAUTHORIZED: no (the server needs a key: set API_KEY)"),
        ("1", 400, "INVALID_PARAMETER: language: unknown", "--language: unknown"),
    ],
)
def test_a_refusal_for_all_is_reported_once(fake, folder, capsys, parallel, status, detail, told):
    """A line says what to do, and the folder's other recordings are not sent."""
    for number in range(20):
        (folder / f"{number}.wav").write_bytes(b"sound")
    fake.replies = [refuse(status, {"detail": detail})]
    given = ["transcribe", str(folder), "--url", fake.url, "--parallel", parallel]
    assert main([*given, "--language", "de"]) == 1
    assert len(fake.bodies) <= int(parallel)
    summary, reason = capsys.readouterr().err.splitlines()
    assert summary.startswith("22 recordings: 0 done, 22 not done")
    assert reason == told


def test_missing_servers_files_and_recordings_are_one_line(tmp_path, capsys):
    with FakeServer() as closed:
        url = closed.url
    (tmp_path / "a.ogg").write_bytes(b"sound")
    (tmp_path / "notes").mkdir()
    nobody = f"{url}: Connection refused; is a server running there? scripts/serve starts one"
    for given, told in (
        ([str(tmp_path / "a.ogg"), "--url", url], nobody),
        (["/no/such/talk.ogg"], "/no/such/talk.ogg: there is no such file or folder"),
        ([str(tmp_path / "notes")], f"{tmp_path / 'notes'}: has no recordings"),
    ):
        for command in ("transcribe", "demo"):
            assert main([command, *given]) == 1
            assert capsys.readouterr().err == f"{told}\n"


def test_the_demo_prints_every_recording_and_failure(fake, folder, capsys):
    def by_name(handler: FakeHandler, body: dict) -> None:
        broken = base64.b64decode(body["inputs"]) == b"a.ogg"
        answer = {"chunks": [{"text": " hi", "timestamp": [0.0, 1.0]}], "warnings": ["noise"]}
        content = json.dumps({"text": " hi", "language": "en", "speakers": [], **answer})
        if broken:
            refuse(400, {"detail": "INVALID_AUDIO: none"})(handler, body)
        else:
            handler.send(200, content.replace("{", '{"duration": 2.0, ', 1).encode())

    fake.replies = [by_name]
    assert main(["demo", str(folder), "--url", fake.url]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"{folder / 'a.ogg'}: INVALID_AUDIO: none\n"
    title, line, warning, summary = printed.out.splitlines()
    assert (title, line.split()) == (f"{folder / 'deep/b.WAV'}:", ["0:00.0", "hi"])
    assert warning == "warning: noise"
    assert summary.startswith("0:02.0 of audio, language en; took ")


def test_subtitle_and_threshold_options_reach_the_server(fake, folder, capsys):
    command = ["demo", str(folder / "a.ogg"), "--url", fake.url, "--output_format", "srt"]
    options = "--max_line_width 40 --max_line_count 2 --highlight_words --no-subtitle-speakers"
    options += " --logprob_threshold -1 --no-vad-filter"
    assert main([*command, *options.split()]) == 0
    layout = {"max_line_width": 40, "max_line_count": 2, "highlight_words": True}
    others = {"subtitle_speakers": False, "logprob_threshold": "-1", "vad_filter": False}
    assert fake.bodies[0]["parameters"] == {"output": ["srt"]} | layout | others
    assert capsys.readouterr() == (FILES["srt"], "")
    assert main([*command, "--temperature", "2"]) == 2
    assert main([*command, "--vad-parameters", '{"onset": 1}']) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "scripts/demo: --temperature: should be less than or equal to 1"
    assert second.startswith("scripts/demo: --vad-parameters: onset: is none of threshold, ")


def with_speakers(handler: FakeHandler, body: dict) -> None:
    """Reply with an answer in which two people speak, with the requested files."""
    names = ("SPEAKER_00", "SPEAKER_01")
    turn = {"text": " hello", "timestamp": [0.0, 1.0]}
    answer = full_answer(body) | {"speakers": [{"speaker": name, **turn} for name in names]}
    answer["warnings"] = []
    output = answer["output"]
    if "txt" in output:
        output["txt"] = "".join(f"{name}: hello\n" for name in names)
    handler.send(200, json.dumps(answer).encode())


NAMES = ["--speaker-names", "SPEAKER_00=Anna", "--speaker_names", "SPEAKER_01=Bob"]


def test_given_names_replace_the_labels_of_speakers(fake, folder, capsys):
    fake.replies = [with_speakers]
    given = [str(folder / "a.ogg"), "--url", fake.url]
    assert main(["demo", *given, *NAMES, "-f", "txt"]) == 0
    assert capsys.readouterr() == ("Anna: hello\nBob: hello\n", "")
    assert "speaker_names" not in fake.bodies[0]["parameters"]
    assert main(["transcribe", *given, *NAMES[2:], "--speaker-names", "Eve=Anna"]) == 0
    assert (folder / "a.txt").read_text() == "SPEAKER_00: hello\nBob: hello\n"
    told = "no Eve; the speakers are SPEAKER_00, SPEAKER_01"
    assert f"{folder / 'a.ogg'}: warning: --speaker-names: {told}" in capsys.readouterr().err


def test_a_kept_transcript_gets_names_without_the_server(fake, folder, capsys):
    fake.replies = [with_speakers]
    given = ["transcribe", str(folder / "a.ogg"), "--url", fake.url]
    assert main(given) == 0
    (folder / "a.vtt").write_text("corrected")
    capsys.readouterr()
    assert main([*given, "-f", "json", *NAMES, "--speaker-names", "Eve=Adam"]) == 0
    assert len(fake.bodies) == 1
    assert (folder / "a.txt").read_text() == "Anna: hello\nBob: hello\n"
    answer = json.loads((folder / "a.json").read_text())
    assert [each["speaker"] for each in answer["speakers"]] == ["Anna", "Bob"]
    assert answer["output"]["txt"] == "Anna: hello\nBob: hello\n"
    assert answer["warnings"] == []
    assert "no Eve; the speakers are" in capsys.readouterr().err
    assert (folder / "a.vtt").read_text() == "corrected"
    # And others later, by the names that are shown now.
    assert main([*given, "-f", "txt", "--speaker-names", "Anna=Dr. Anna"]) == 0
    assert (folder / "a.txt").read_text() == "Dr. Anna: hello\nBob: hello\n"
    assert len(fake.bodies) == 1
    assert f"{folder / 'a.ogg'}: renamed in 3 files" in capsys.readouterr().err.splitlines()
    # And by their labels, in the order in which they speak; one file was corrected.
    assert main([*given, "-f", "txt", "--speaker-names", "SPEAKER_00=Eve"]) == 0
    assert (folder / "a.txt").read_text() == "Eve: hello\nBob: hello\n"
    assert main([*given, "-f", "txt", "--speaker-names", "Bob,Eve"]) == 0
    assert (folder / "a.txt").read_text() == "Bob: hello\nEve: hello\n"
    capsys.readouterr()
    assert main([*given, "-f", "txt", "--speaker-names", "SPEAKER_01=Eve"]) == 0
    assert "renamed" not in capsys.readouterr().err
    # One of a recording that is another now is no answer to it.
    (folder / "a.ogg").write_bytes(b"changed")
    assert main([*given, "-f", "json,txt", *NAMES]) == 0
    assert (folder / "a.txt").read_text() == "Anna: hello\nBob: hello\n"
    assert len(fake.bodies) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--language", "x"], "--language: "),
        (["--num-beams", "99"], "--num-beams: should be less than or equal to 8"),
        (["--beam_size", "99"], "--beam-size: should be less than or equal to 8"),
        (["--speaker-names", f"A={'x' * 65}"], "--speaker-names: should have 1 to 64 characters"),
        (["--speaker-names", "A=SPEAKER_01"], "--speaker-names: should not look like a label"),
        (["--known-speakers", f"{__file__}=CHANNEL_01"], "--known-speakers: should not look"),
        (["--parameters", '{"langage": "en"}'], "--parameters: 'langage' is not a parameter; did"),
        (["--parameters", '{"num_beams": 0}'], "--parameters: num_beams: should be greater"),
        (["--diarize", "--parameters", '{"diarize": 3}', "--no-speakers"], ""),
    ],
)
def test_a_wrong_option_is_one_line_before_models_load(folder, capsys, wrong, said):
    """No --url is given; the error is not about the recording, which is not audio."""
    status = main(["transcribe", str(folder / "a.ogg"), *wrong])
    (line,) = capsys.readouterr().err.splitlines()
    if said:
        assert (status, line.partition(f": {said}")[:2]) == (2, ("scripts/transcribe", f": {said}"))
    else:
        assert (status, "INVALID_AUDIO" in line) == (1, True)


def test_a_closed_pipe_is_no_traceback(fake, folder):
    """`scripts/demo --output-format json | head -1` does this."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "whosaid.transcribe", "demo", str(folder / "a.ogg")]
    command += ["--output-format", "json", "--url", fake.url]
    given = {"cwd": REPOSITORY, "stdout": writing, "stderr": subprocess.PIPE}
    done = subprocess.run(command, **given, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_ends_with_130_and_a_summary(fake, folder, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "write_all", interrupt)
    assert main(["transcribe", str(folder), "--url", fake.url]) == 130
    assert capsys.readouterr().err == "2 recordings: 0 done, 2 not done\n"


def test_a_run_ends_if_nobody_reads_its_lines(fake, folder, monkeypatch):
    def end(*_):
        raise SystemExit(1)  # as rich does

    monkeypatch.setattr(Run, "finish", end)
    with pytest.raises(SystemExit):
        main(["transcribe", str(folder), "--url", fake.url])


def test_a_damaged_answer_fails_one_recording(fake, folder, capsys):
    given = ["transcribe", str(folder), "--url", fake.url, "--output-format"]
    assert main([*given, "txt"]) == 0
    answer = json.loads((folder / "a.json").read_text())
    del answer["speakers"]
    (folder / "a.json").write_text(json.dumps(answer))
    assert main([*given, "md"]) == 1
    assert f"{folder / 'a.ogg'}: KeyError: 'speakers'" in capsys.readouterr().err
    assert (folder / "deep/b.md").exists()


def test_an_unexpected_exception_fails_one_recording(fake, folder, monkeypatch, capsys):
    read = Path.read_bytes

    def read_or_raise(path: Path) -> bytes:
        if path.name == "a.ogg":
            raise RuntimeError("not\n so")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_or_raise)
    before = tree(folder)
    options = ["--output-format", "srt", "--url", fake.url, "--parallel", "1"]
    assert main(["transcribe", str(folder), *options]) == 1
    assert tree(folder) == before | {"deep/b.srt", "deep/b.json"}
    assert f"[1/2] {folder / 'a.ogg'}: RuntimeError: not so" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("answer", [{}, {"duration": float("nan")}])
def test_an_answer_without_a_duration_is_no_failure(fake, folder, capsys, answer):
    content = json.dumps({"text": " good morning", **answer}).encode()
    fake.replies = [lambda handler, _: handler.send(200, content)]
    recording = folder / "a.ogg"
    options = ["--output-format", "json", "--url", fake.url]
    assert main(["transcribe", str(recording), *options]) == 0
    assert json.loads((folder / "a.json").read_text("utf-8"))["text"] == " good morning"
    said = capsys.readouterr().err
    assert re.fullmatch(rf"{re.escape(str(recording))}: done in \d+\.\d s\n", said)


def test_the_text_of_a_file_is_sent(fake, folder, tmp_path, capsys):
    script = tmp_path / "script.txt"
    script.write_bytes("\ufeffGrüß Gott.\n".encode())
    options = ["--output-format", "srt", "--url", fake.url, "--text", str(script)]
    assert main(["transcribe", str(folder / "a.ogg"), *options]) == 0
    assert [body["parameters"]["text"] for body in fake.bodies] == ["Grüß Gott.\n"]
    assert main(["transcribe", str(folder / "a.ogg"), *options]) == 0
    assert main(["transcribe", str(folder / "a.ogg"), *options, "--force"]) == 0
    options[1] = "json"
    for _ in range(2):
        assert main(["transcribe", str(folder / "a.ogg"), *options]) == 0
    assert len(fake.bodies) == 5  # what was heard without a text, or with another, is heard again
    digest = sha256("Grüß Gott.\n".encode()).hexdigest()
    assert kept(folder / "a.json")[1]["parameters"]["text"] == f"sha256 {digest}"
    script.write_bytes(b"\xff")
    assert main(["transcribe", str(folder / "a.ogg"), *options]) == 2
    assert capsys.readouterr().err.endswith(f"--text: {script}: is not UTF-8 text\n")


@pytest.mark.parametrize("name", ["-", "/dev/fd/{}"])
def test_a_text_from_a_pipe_is_sent(fake, folder, monkeypatch, name):
    """Another Python may have read the command line before .venv was ready."""
    reading, writing = os.pipe()
    os.write(writing, "Grüß Gott.\n".encode())
    os.close(writing)
    given = ["transcribe", str(folder / "a.ogg"), "--url", fake.url, "--text", name.format(reading)]
    with open(reading, encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        read_transcribe(given[1:])
        assert main(given) == 0
    assert [body["parameters"]["text"] for body in fake.bodies] == ["Grüß Gott.\n"]


def test_standard_input_is_printed_or_written(fake, tmp_path, monkeypatch, capsys):
    """Another recording does not overwrite its files, and the same one is done."""

    def pipe(content: bytes, *options: str) -> int:
        (tmp_path / "pipe").write_bytes(content)
        with open(tmp_path / "pipe", encoding="utf-8") as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            return run(read_transcribe(["-", "--url", fake.url, *options]))

    assert pipe(b"one") == 0
    assert capsys.readouterr() == (FILES["txt"], "")
    assert pipe(b"one", "-f", "srt", "--speaker-names", "Anna") == 0
    assert capsys.readouterr().out == FILES["srt"]
    assert base64.b64decode(fake.bodies[0]["inputs"]) == b"one"
    out = tmp_path / "out"
    for content, options, status in ((b"one", [], 0), (b"one", [], 0), (b"two", [], 1)):
        assert pipe(content, "-o", str(out), *options) == status
    assert kept(out / "stdin.json")[0]["sha256"] == sha256(b"one").hexdigest()
    assert len(fake.bodies) == 3
    assert pipe(b"two", "-o", str(out), "--force") == 0
    assert tree(out) == {f"stdin.{name}" for name in ("json", "srt", "vtt", "txt")}


def test_a_file_above_the_servers_limit_is_not_sent(fake, folder, capsys):
    fake.info = {**INFO, "max_audio_bytes": 5}
    assert main(["transcribe", str(folder), "--url", fake.url]) == 1
    assert len(fake.bodies) == 1
    assert "not sent, because the file has" in capsys.readouterr().err


def test_a_read_only_folder_fails_before_work(fake, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda place, mode: place != folder / "deep")
    given = ["transcribe", str(folder), "--url", fake.url]
    assert main(given) == 1
    read_only = f"{folder / 'deep'}: is read-only; --output-dir writes elsewhere"
    assert f"failed: {folder / 'deep/b.WAV'}: {read_only}" in capsys.readouterr().err.splitlines()
    assert len(fake.bodies) == 1
    assert main([*given, "-o", str(tmp_path / "new" / "out")]) == 0


def test_the_text_of_the_client_is_not_overwritten(fake, folder, capsys):
    script = folder / "a.txt"
    script.write_text("Good morning.")
    given = ["transcribe", str(folder / "a.ogg"), "--url", fake.url, "--text", str(script)]
    assert main(given) == 1
    assert capsys.readouterr().err.startswith(f"{script}: would be overwritten")
    assert (script.read_text(), fake.bodies) == ("Good morning.", [])
    assert main([*given, "--output-format", "json,srt"]) == 0
    assert script.read_text() == "Good morning."
    # Nor removed where an answer says the same, and the next one does not.
    script.write_text(FILES["txt"])
    fake.replies = [answer_otherwise]
    assert main([*given, "--output-format", "json,srt"]) == 0
    assert (folder / "a.srt").read_text() == f"new {FILES['srt']}"
    assert script.read_text() == FILES["txt"]


def test_a_file_written_during_the_run_is_not_overwritten(fake, folder, capsys):
    def write_notes(handler, body):
        (folder / "a.srt").write_text("mine")
        answer_otherwise(handler, body)

    fake.replies = [write_notes]
    given = ["transcribe", str(folder / "a.ogg"), "--url", fake.url, "--output-format", "srt"]
    assert main(given) == 1
    assert "a.srt: its text is not this program's" in capsys.readouterr().err
    assert ((folder / "a.srt").read_text(), (folder / "a.json").exists()) == ("mine", True)


# What lies beside recordings in data sets: their texts, and NeMo's manifests.
@pytest.mark.parametrize(
    ("name", "text"),
    [("a.txt", "guten Morgen\n"), ("a.json", '{"text": "guten Morgen", "duration": 61.0}')],
)
def test_only_force_overwrites_foreign_files(fake, folder, capsys, name, text):
    """The file is named at the end, all else is done; without its JSON file none of a recording."""
    reference = folder / name
    reference.write_text(text)
    before = tree(folder)
    given = ["transcribe", str(folder), "--url", fake.url]
    assert main([*given, "--output-dir", str(folder.parent / "out")]) == 0
    assert (tree(folder), reference.read_text()) == (before, text)
    own = name == "a.json"
    capsys.readouterr()
    assert main(given) == 1
    *_, line = capsys.readouterr().err.splitlines()
    says = "; --force overwrites it, --output-dir writes elsewhere"
    told = f"{reference}: its text is not this program's{says}"
    assert line == (f"failed: {folder / 'a.ogg'}: {told}" if own else f"skipped: {told}")
    written = {"deep/b"} if own else {"deep/b", "a"}
    files = {f"{stem}.{each}" for stem in written for each in ("json", "srt", "vtt", "txt")}
    assert (tree(folder), reference.read_text()) == (before | files, text)
    assert main(["transcribe", str(folder / "a.ogg"), *given[2:], "--text", __file__]) == 1
    assert reference.read_text() == text
    assert main([*given, "--force"]) == 0
    assert reference.read_text() != text


def test_the_demo_overwrites_only_by_force(fake, folder, capsys):
    note = folder / "a.txt"
    note.write_text("mine")
    given = ["demo", str(folder / "a.ogg"), "--url", fake.url, "-o", str(folder), "-f", "srt,txt"]
    assert (main(given), note.read_text()) == (1, "mine")
    assert "skipped: " in capsys.readouterr().err
    assert (folder / "a.srt").read_text() == FILES["srt"]
    assert (main([*given, "--force"]), note.read_text()) == (0, FILES["txt"])


def test_changed_texts_beside_a_json_file_are_kept(fake, folder, capsys):
    """A subtitle was corrected by hand, and a text was there before."""
    given = ["transcribe", str(folder / "a.ogg"), "--url", fake.url, "--output-format"]
    assert main([*given, "json,srt"]) == 0
    (folder / "a.srt").write_text("corrected\n")
    (folder / "a.txt").write_text("guten Morgen\n")
    capsys.readouterr()
    assert main([*given, "json,srt,vtt,txt"]) == 0  # nothing is heard again, and they stay
    assert capsys.readouterr().err.splitlines()[:2] == [
        f"{folder / 'a.srt'} and 1 more: stay as they are, because the text there is not this"
        " program's; --force overwrites it",
        f"{folder / 'a.ogg'}: vtt written",
    ]
    assert (folder / "a.vtt").read_text() == FILES["vtt"]
    assert (folder / "a.txt").read_text() == "guten Morgen\n"
    (folder / "a.ogg").write_bytes(b"changed")
    fake.replies = [answer_otherwise]
    assert main([*given, "json,srt,vtt,txt"]) == 1
    assert (folder / "a.srt").read_text() == "corrected\n"
    assert (folder / "a.txt").read_text() == "guten Morgen\n"
    assert (folder / "a.vtt").read_text() == f"new {FILES['vtt']}"
    assert len(fake.bodies) == 2
    assert main([*given, "json,vtt"]) == 0
    assert len(fake.bodies) == 2


@pytest.mark.parametrize("bytes_", [250, 251])
def test_the_longest_names_have_files(fake, tmp_path, bytes_):
    """File systems take 255 bytes, and two names may differ in the last ones."""
    names = ["ü" * (bytes_ // 2) + "x" * (bytes_ % 2), "ü" * (bytes_ // 2 - 1) + "y" * 3]
    names[1] = names[1].encode()[:bytes_].decode()
    for name in names:
        (tmp_path / f"{name}.ogg").write_bytes(name.encode())
    for _ in range(2):
        assert main(["transcribe", str(tmp_path), "--url", fake.url]) == 0
    assert len(fake.bodies) == 2
    assert len(tree(tmp_path)) == 2 + 2 * 4
    if bytes_ <= 250:
        assert (tmp_path / f"{names[0]}.json").exists()


def test_the_key_comes_from_the_environment(fake, folder, monkeypatch):
    monkeypatch.setenv("API_KEY", "schlüssel\n")
    assert main(["transcribe", str(folder / "a.ogg"), "--url", fake.url]) == 0
    assert fake.headers[0]["authorization"].encode("latin-1") == "Bearer schlüssel".encode()


def test_the_command_starts_without_the_models_libraries():
    script = (
        "import sys, whosaid.transcribe.__main__\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'av', 'numpy'}\n"
        "sys.exit(bool(heavy & sys.modules.keys()))"
    )
    assert run_python("-c", script).returncode == 0


def test_the_real_server_takes_jobs_of_it(tiny_handler, wav, tmp_path, monkeypatch):
    talk = tmp_path / "talk.wav"
    talk.write_bytes(wav(speech(3.5)))
    monkeypatch.setattr("whosaid.transcribe.client.FIRST_PAUSE_S", 0.01)
    options = ["--language", "en", "--output-format", "json", "--force"]
    written = []
    with serving(tiny_handler.endpoint, tmp_path / "jobs", page=False) as url:
        for more in ([], ["--job"]):
            assert main(["transcribe", str(talk), "--url", url, *options, *more]) == 0
            written.append((tmp_path / "talk.json").read_text("utf-8"))
        assert httpx2.get(f"{url}/v1/jobs").json()["data"] == []
    assert written[0] == written[1]


def test_the_real_server_streams_to_it(tiny_handler, wav, tmp_path, monkeypatch, capsys):
    (tmp_path / "talk.wav").write_bytes(wav(speech(3.5)))
    data = (tmp_path / "talk.wav").read_bytes()
    parameters = {"output": ["srt", "txt"], "language": "en", "return_timestamps": "word"}
    expected = tiny_handler(request_body(data, **parameters))
    monkeypatch.setenv("API_KEY", "a secret")
    with serving(tiny_handler.endpoint, page=False, api_key="a secret") as url:
        arguments = ["transcribe", str(tmp_path / "talk.wav"), "--url", url]
        arguments += ["--output-format", "json,srt,txt"]
        assert main([*arguments, "--language", "en"]) == 0
        told: list[tuple[float, float]] = []
        client = Client(url, "a secret")
        with client.transcribed([data], parameters, lambda *each: told.append(each)):
            pass
        monkeypatch.setenv("API_KEY", "another")
        assert main([*arguments, "--force"]) == 1
    assert "UNAUTHORIZED" in (line := capsys.readouterr().err.splitlines()[-1])
    assert "the key in API_KEY" in line
    assert told[0] == (0.0, 3.5)
    assert told[-1][0] == pytest.approx(told[-1][1])
    outputs = expected.pop("output")
    recording, made, written = kept(tmp_path / "talk.json")
    assert (recording["name"], made["models"]["diarization"]) == ("talk.wav", False)
    assert set(written.pop("output")) > set(outputs)
    assert written == expected
    assert (tmp_path / "talk.txt").read_text("utf-8") == outputs["txt"]
