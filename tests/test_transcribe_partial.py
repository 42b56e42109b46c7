"""An interrupted transcription goes on: no window is decoded twice, and the answer is the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.stand_ins import asking, rounded
from tests.support.audio_files import conversation
from tests.support.tiny_whispers import noise
from whosaid.answer.kept import RunRequest
from whosaid.asr import Prior
from whosaid.asr.engine.session import Session
from whosaid.asr.transcriber import Transcriber
from whosaid.asr.transcription import Transcription
from whosaid.cli.parser import INTERRUPTED
from whosaid.scheduling.steps import run_steps
from whosaid.transcribe.__main__ import main
from whosaid.transcribe.partial import PartialAnswer
from whosaid.transcribe.recordings import Recording
from whosaid.transcribe.screen import Run

REQUEST = RunRequest({"model": "tiny"}, {"language": "en"})
OPTIONS = [{"language": "en", "chunk_length_s": 2}, {"multilingual": True}, {"text": "word300 two"}]


@pytest.fixture
def decoded(monkeypatch) -> list[object]:
    windows: list[object] = []
    add = Session.add

    def note(session: Session, requests) -> None:
        windows.extend(each.key for each in requests)
        add(session, requests)

    monkeypatch.setattr(Session, "add", note)
    return windows


def recording() -> np.ndarray:
    pause = np.zeros(16_000, np.float32)
    sounds = [noise(seconds, seed) for seed, seconds in enumerate((1.0, 4.4, 2.7))]
    return np.concatenate([each for sound in sounds for each in (pause, sound)])


def partial_answer(folder: Path, digest: str = "0", request: RunRequest = REQUEST) -> PartialAnswer:
    return PartialAnswer(Recording(Path("a.wav"), folder / "a"), {"sha256": digest}, request)


def begun(transcriber: Transcriber, options: dict, kept: PartialAnswer | None) -> Transcription:
    prior = Prior(journal=None if kept is None else kept.journal(None))
    wanted = transcriber.validate(asking(**options))
    return run_steps(transcriber.start(recording(), wanted, prior=prior))


@pytest.mark.parametrize("options", OPTIONS)
def test_an_interrupted_run_goes_on_to_the_same_transcript(transcriber, decoded, tmp_path, options):
    expected = begun(transcriber, options, None).run()
    every, interrupted = {*map(str, decoded)}, 0
    for steps in range(0, 999, 7):
        first = begun(transcriber, options, partial_answer(tmp_path))
        for _ in range(steps):
            if first.result is None:
                (transcriber.engine if first.waiting else first).step()
        first.close()
        kept = partial_answer(tmp_path)
        written = {str(line.decoded.window) for line in kept.windows.values()}
        decoded.clear()
        assert rounded(begun(transcriber, options, kept).run()) == rounded(expected)
        if not options.get("text"):  # whose windows are decoded again with its words
            assert {*map(str, decoded)} == every - written
        interrupted += 0 < len(written) < len(every)
        kept.remove()
        assert [*tmp_path.iterdir()] == []
        if first.result is not None:
            break
    assert interrupted > 1


@pytest.fixture
def half(transcriber, tmp_path) -> Path:
    """Return the file of a run that decoded all windows, but was then interrupted."""
    kept = partial_answer(tmp_path)
    begun(transcriber, OPTIONS[0], kept).run()
    assert len(kept.windows) > 2
    return kept.path


def test_no_reader_takes_the_file_for_an_answer(half):
    with pytest.raises(ValueError, match="Extra data"):
        json.loads(half.read_text("utf-8"))
    first, *lines = map(json.loads, half.read_text("utf-8").splitlines())
    assert "interrupted" in first["partial"]
    assert all(line["text"] for line in lines)
    half.rename(half.with_name("a.json"))
    assert Recording(Path("a.wav"), half.with_name("a")).kept_answer() is None


def test_a_line_that_broke_off_costs_its_window_only(half):
    whole = half.read_bytes()
    half.write_bytes(whole[:-40])
    assert len(partial_answer(half.parent).windows) == whole.count(b"\n") - 2


@pytest.mark.parametrize(
    "changed", [{"digest": "1"}, {"request": RunRequest({"model": "tiny"}, {"language": "de"})}]
)
def test_another_recording_or_request_begins_anew(half, changed):
    assert not partial_answer(half.parent, **changed).resumes


@pytest.mark.parametrize("content", ["", "my notes", '{"partial": "mine"}', "[]"])
def test_a_file_of_another_program_stays(transcriber, tmp_path, content):
    file = tmp_path / "a.partial.jsonl"
    file.write_text(content)
    kept = partial_answer(tmp_path)
    begun(transcriber, OPTIONS[0], kept).run()
    kept.remove()
    assert file.read_text() == content


def test_after_ctrl_c_the_next_run_goes_on(tmp_path, monkeypatch, wav, tiny_endpoint, capsys):
    monkeypatch.setattr("handler.load_endpoint", lambda _: tiny_endpoint)
    talks, whole = tmp_path / "talks", tmp_path / "whole"
    talks.mkdir()
    (talks / "a.wav").write_bytes(wav(conversation()))
    command = ["transcribe", str(talks), "--embedded", "--output-format", "srt,txt"]
    command += ["--parameters", '{"chunk_length_s": 5, "language": "en"}']
    assert main([*command, "--output-dir", str(whole)]) == 0
    advance = Run.advance

    def interrupt(run: Run, path: Path, done: float, total: float, *_: object) -> None:
        advance(run, path, done, total)
        if done:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Run, "advance", interrupt)
        assert main(command) == INTERRUPTED
    partial = talks / "a.partial.jsonl"
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(f"%; {partial} keeps that, and the next run goes on from there")
    assert {each.name for each in talks.iterdir()} == {"a.wav", "a.partial.jsonl"}
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"{talks / 'a.wav'}: goes on from {partial}\n" in said
    assert "skipped" not in said
    assert not partial.exists()
    for name in ("json", "srt", "txt"):
        written = (talks / f"a.{name}").read_text("utf-8")
        assert written == (whole / f"a.{name}").read_text("utf-8")
