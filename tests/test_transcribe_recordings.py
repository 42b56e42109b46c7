"""Finds recordings, their outputs, and the owner of existing files."""

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from config import OutputFormat
from tests.support.audio_files import FORMATS as READABLE
from whosaid.answer.kept import RunRequest, for_keeping
from whosaid.audio import ENDING
from whosaid.transcribe import recordings
from whosaid.transcribe.client import Failed
from whosaid.transcribe.options import FORMATS
from whosaid.transcribe.recordings import (
    Recording,
    as_texts,
    collisions,
    find_recordings,
    left_out,
    needed_work,
    sparing,
    unreadable,
    write_outputs,
)

TEXTS = ("srt", "vtt", "txt", "tsv")
REQUEST = RunRequest({"asr_model": "a/whisper"}, for_keeping({}))


def test_the_formats_are_the_endpoints_and_json():
    assert set(FORMATS) == {"json", *get_args(OutputFormat)}


def test_endings_cover_readable_files_and_no_texts():
    assert [name for name in READABLE if not ENDING.fullmatch(Path(name).suffix)] == []
    assert all(map(ENDING.fullmatch, (".qta", ".3ga", ".mts", ".m2ts", ".M4R", ".vob", ".ts")))
    assert not any(map(ENDING.fullmatch, (".txt", ".srt", ".json", ".wav2", "wav", "")))


def test_other_files_of_a_folder_are_listed(tmp_path):
    for name in [
        "a.qta",
        "a.json",
        "a.srt",
        "notes.pdf",
        "deep/b.mid",
        ".hidden/c.xyz",
        "talk.unknown",
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = left_out([tmp_path, tmp_path / "talk.unknown"])
    assert [str(each.relative_to(tmp_path)) for each in found] == ["deep/b.mid", "talk.unknown"]


def test_a_file_named_twice_is_one_recording(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    for name in ("a.ogg", "b.ogg", "b.mp3"):
        (tmp_path / "here" / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path / "here")
    named = ["a.ogg", "../here/a.ogg", str(tmp_path / "here" / "a.ogg"), "../link/a.ogg"]
    found = find_recordings([Path(name) for name in named], None)
    assert [(each.path, each.stem) for each in found] == [(Path("a.ogg"), Path("a"))]
    found = find_recordings([Path("b.ogg"), Path("../here/b.mp3")], None)
    assert [each.stem.name for each in found] == ["b.ogg", "b.mp3"]


def test_folders_that_are_links_are_read_once(tmp_path):
    for name in ("talks/a.ogg", "disk/b.ogg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    for link, target in (("disk", "disk"), ("again", "disk"), ("loop", "talks")):
        (tmp_path / "talks" / link).symlink_to(tmp_path / target)
    found = find_recordings([tmp_path / "talks"], tmp_path / "out")
    assert [str(each.stem.relative_to(tmp_path)) for each in found] == ["out/a", "out/again/b"]


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.ogg").write_bytes(b"")
    (closed := tmp_path / "closed").mkdir()

    def scan(folder: str, read: Callable[[str], Any] = os.scandir) -> Any:
        if Path(folder) == closed:  # the superuser may read every folder
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return read(folder)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(Failed, match=f"^{closed}: Permission denied$"):
        find_recordings([tmp_path], None)


@pytest.mark.parametrize("ending", [".ts", ".mts"])
def test_mpeg_ts_is_a_recording_unlike_typescript(tmp_path, ending):
    for name in ("video", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / f"code/index{ending}").write_text("import { G } from './G'\n" * 999)
    (tmp_path / f"code/empty{ending}").write_bytes(b"")
    for size in (188, 192, 204):
        # Null packets, cut within a packet.
        stream = (b"G\x1f\xff\x10" + b"\xff" * (size - 4)) * 9
        (tmp_path / f"video/{size}{ending}").write_bytes(stream[50:])
    (tmp_path / f"video/mp4{ending}").write_bytes(b"\0\0\0\x20ftypisom")
    found = find_recordings([tmp_path], None)
    assert [each.path.stem for each in found] == ["188", "192", "204", "mp4"]
    assert left_out([tmp_path]) == unreadable([tmp_path]) == []


def test_links_to_nothing_and_pipes_are_named(tmp_path):
    (tmp_path / "a.ogg").write_bytes(b"")
    (tmp_path / "b.mp3").symlink_to(tmp_path / "nothing")
    (tmp_path / "c.mp3").symlink_to("c.mp3")
    (tmp_path / "notes.pdf").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "d.wav")
    assert [each.path.name for each in find_recordings([tmp_path], None)] == ["a.ogg"]
    gone = "is a link to a file that does not exist"
    lines = [f"b.mp3: {gone}", f"c.mp3: {gone}", "d.wav: is no file"]
    assert unreadable([tmp_path]) == [f"{tmp_path}/{line}" for line in lines]
    named = [tmp_path / "b.mp3", tmp_path / "a.ogg"]
    assert [each.path for each in find_recordings(named, None)] == named[1:]
    assert unreadable(named) == [f"{tmp_path}/{lines[0]}"]


@pytest.mark.parametrize("same", [False, True])
def test_the_file_system_decides_whether_outputs_collide(tmp_path, monkeypatch, same):
    """Folders and files, by case and by Unicode form; nothing is left in the folder."""
    here = [tmp_path / name for name in ("A/x.mp3", "a/x.mp3", "a/X.mp3", "a/x.wav")]
    here += [tmp_path / "a" / name for name in ("gr\u00fcn.mp3", "gru\u0308n.mp3", "y.mp3")]
    for path in here:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    out = tmp_path / "out"
    found = find_recordings([tmp_path / "A", tmp_path / "a"], out)
    if same:  # as a file system that ignores both says
        monkeypatch.setattr(recordings, "_is_one_file", lambda *_: True)
    reasons = collisions(found)
    assert {*reasons} == ({*here[1:3], *here[4:6]} if same else set())
    assert all(str(other) in reasons[path] for path, other in [here[4:6]] if same)
    assert len({each.output("json") for each in found}) == 7
    assert not out.exists()
    assert not [*tmp_path.glob(".*")]


def test_an_output_never_replaces_a_recording(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"")
    (tmp_path / "b.srt").symlink_to(tmp_path / "a.json")
    named = [tmp_path / name for name in ("a.wav", "b.srt")]
    reasons = collisions([Recording(named[0], tmp_path / "a"), Recording(named[1], tmp_path / "c")])
    assert [*reasons] == [named[0]]
    assert f"overwrite the recording {named[1]};" in reasons[named[0]]


@pytest.mark.parametrize(
    ("named", "stems"),
    [
        (["a/x.mp3"], ["x"]),
        (["a/x.mp3", "b/y.mp3"], ["x", "y"]),
        (["a/x.mp3", "b"], ["a/x", "b/x", "y"]),
        (["a", "b/y.mp3"], ["deep/z", "x", "y"]),
        (["a/x.mp3", "a/x.wav"], ["x.mp3", "x.wav"]),
    ],
)
def test_outputs_keep_folders_only_if_names_are_equal(tmp_path, named, stems):
    for name in ("a/x.mp3", "a/deep/z.mp3", "b/x.mp3", "b/y.mp3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    if "a/x.wav" in named:
        (tmp_path / "a/x.wav").write_bytes(b"")
    found = find_recordings([tmp_path / name for name in named], tmp_path / "out")
    assert [str(each.stem.relative_to(tmp_path / "out")) for each in found] == stems


def test_a_name_that_is_not_utf8_gets_its_files(tmp_path):
    (tmp_path / os.fsdecode(b"gr\xfcn.ogg")).write_bytes(b"sound")
    (recording,) = find_recordings([tmp_path], None)
    write_outputs(recording, an_answer(recording, "green"), ["srt"])
    answer = recording.kept_answer()
    assert answer["recording"]["name"] == "gr\ufffdn.ogg"
    assert recording.is_of(answer)
    assert recording.is_place_of(answer)


def test_a_format_that_was_not_sent_is_named():
    with pytest.raises(Failed, match="did not send srt, rttm"):
        as_texts({"text": "", "output": {"vtt": ""}}, ("vtt", "srt", "rttm"))


def an_answer(recording: Recording, said: str) -> dict:
    texts = {name: f"{name}: {said}\n" for name in TEXTS}
    told = {"recording": recording.described([recording.path.read_bytes()])}
    told["made_with"] = REQUEST.to_json()
    told |= {key: [] for key in ("chunks", "speakers", "words")}
    return told | {"text": said, "duration": 1.0, "output": texts}


def texts_of(said: str, *names: str) -> dict[str, str]:
    return {name: f"{name}: {said}\n" for name in names}


def replaced_recording(folder: Path, formats: tuple[str, ...]) -> Recording:
    folder.mkdir()
    recording = Recording(folder / "a.ogg", folder / "a")
    recording.path.write_bytes(b"sound")
    write_outputs(recording, an_answer(recording, "before"), formats)
    recording.path.write_bytes(b"another sound")
    return recording


def run(recording: Recording, formats: tuple[str, ...], said: str) -> None:
    work = sparing(needed_work(recording, REQUEST, formats, anew=False), "")
    if work.transcribes:
        write_outputs(recording, an_answer(recording, said), work.write)
    elif work.write:
        work.write_kept(REQUEST)


def texts_there(recording: Recording) -> dict[str, str]:
    paths = {name: recording.output(name) for name in TEXTS}
    return {name: path.read_text() for name, path in paths.items() if path.exists()}


def test_a_new_json_file_replaces_its_texts(tmp_path):
    """A run for JSON alone leaves no text that the next run would not know."""
    recording = replaced_recording(tmp_path / "talks", ("json", *TEXTS))
    recording.output("vtt").write_text("corrected\n")
    run(recording, ("json",), "after")
    after = texts_of("after", "srt", "txt", "tsv") | {"vtt": "corrected\n"}
    assert texts_there(recording) == after
    recording.output("srt").unlink()
    run(recording, ("json", "srt", "txt"), "never heard")
    assert texts_there(recording) == after


def test_a_run_may_stop_at_any_change(tmp_path, monkeypatch):
    """Each change that the run makes to the folder is tried."""
    formats, after = ("json", "srt", "txt"), texts_of("after", "srt", "txt")
    for stop in count():
        recording = replaced_recording(tmp_path / str(stop), formats)
        changes = count()

        def interrupted(change, stop=stop, changes=changes):
            def changed(*given, **named):
                if next(changes) >= stop:
                    raise KeyboardInterrupt
                return change(*given, **named)

            return changed

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, interrupted(getattr(Path, name)))
            try:
                run(recording, formats, "after")
                whole = True
            except KeyboardInterrupt:
                whole = False
        run(recording, formats, "after")
        assert texts_there(recording) == after, stop
        assert needed_work(recording, REQUEST, formats, False).write == []
        if whole:
            break
    assert stop >= 5  # three files that appear, and two that go before


def test_an_answer_that_went_meanwhile_is_told(tmp_path):
    recording = Recording(tmp_path / "a.ogg", tmp_path / "a")
    recording.path.write_bytes(b"sound")
    write_outputs(recording, an_answer(recording, "before"), ("json",))
    work = needed_work(recording, REQUEST, ("json", "srt"), anew=False)
    recording.output("json").unlink()
    with pytest.raises(Failed, match=r"a\.json: was changed by another program"):
        work.write_kept(REQUEST)


def test_the_layout_of_subtitles_follows_from_an_answer(tmp_path):
    """Earlier subtitles get the layout too, and texts stay."""
    recording = Recording(tmp_path / "a.ogg", tmp_path / "a")
    recording.path.write_bytes(b"sound")
    words = [
        {"word": f" {text}", "timestamp": [start, start + 0.5], "probability": 0.9}
        for start, text in enumerate(("one", "two"))
    ]
    chunks = [{"text": " one two", "timestamp": [0.0, 1.5]}]
    answer = {**an_answer(recording, "one two"), "chunks": chunks, "words": words}
    write_outputs(recording, answer, ("json", "srt", "vtt", "txt"))
    narrow = RunRequest(REQUEST.models, {**REQUEST.parameters, "max_words_per_line": 1})
    work = needed_work(recording, narrow, ("srt",), anew=False)
    assert (work.transcribes, work.write) == (False, ["srt"])
    work.write_kept(narrow)
    texts = texts_there(recording)
    assert texts["txt"] == "txt: one two\n"
    assert all("\none\n" in texts[name] for name in ("srt", "vtt"))
    assert needed_work(recording, narrow, ("srt", "vtt"), anew=False).write == []
    recording.output("srt").write_text("corrected\n")
    work = sparing(needed_work(recording, REQUEST, ("srt", "vtt"), anew=False), "--force")
    assert work.write == ["vtt"]
    assert work.spared == [f"{tmp_path / 'a.srt'}: its text is not this program's; --force"]
    del answer["words"]
    write_outputs(recording, answer, ("json",))
    assert needed_work(recording, narrow, ("srt",), anew=False).why == "does not give srt"
