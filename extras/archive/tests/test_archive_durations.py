"""Durations by headers beside what is decoded, and files that are made to do harm."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from extras.archive import durations
from extras.archive.durations import read_duration, read_durations
from tests.support.audio_files import mp4_file, two_seconds
from whosaid.audio.decode import AudioLimits, decode_audio


def test_headers_tell_what_decoding_finds(every_format, tmp_path):
    told = {}
    for name, content in every_format.items():
        (tmp_path / name).write_bytes(content)
        told[name] = read_duration(str(tmp_path / name))
    assert {name for name, seconds in told.items() if seconds is None} <= {"a.aac", "amr.amr"}
    for name, seconds in told.items():
        decoded = decode_audio(every_format[name], 16_000, AudioLimits(60, 2**24)).duration
        assert seconds is None or seconds == pytest.approx(decoded, abs=0.3), name


def test_files_that_tell_nothing_have_none(tmp_path):
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.mp3").write_text("no audio")
    for name in ("empty.wav", "text.mp3", "missing.ogg"):
        assert read_duration(str(tmp_path / name)) is None


def test_a_header_that_asks_for_gigabytes_ends_no_more_than_its_process(tmp_path):
    (tmp_path / "bomb.mp4").write_bytes(mp4_file(samples=2**31 - 1, tracks=16))
    (tmp_path / "good.wav").write_bytes(two_seconds())
    told = read_durations([str(tmp_path / "bomb.mp4")])
    assert told.keys() <= {str(tmp_path / "bomb.mp4")}
    assert read_durations([str(tmp_path / "good.wav")]) == {str(tmp_path / "good.wav"): 2.0}


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_of_a_large_file_the_ends_suffice(every_format, tmp_path, monkeypatch, name):
    content = every_format[name]
    (tmp_path / name).write_bytes(content)
    whole = read_duration(str(tmp_path / name))
    monkeypatch.setattr(durations, "END", len(content) // 3)
    assert read_duration(str(tmp_path / name)) == whole is not None
