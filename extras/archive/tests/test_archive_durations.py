"""Durations by headers beside what is decoded, and files that are made to do harm."""

from __future__ import annotations

import io
import os
import signal

import pytest

pytest.importorskip("pyarrow")

from audio.decode import AudioLimits, decode_audio
from extras.archive import durations
from extras.archive.durations import HeaderReader, read_duration, read_durations, read_portion
from testing.audio_files import mp4_file, two_seconds


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


def test_of_a_file_no_more_is_read_than_allowed(monkeypatch):
    monkeypatch.setattr(durations, "MOST_READ", 100)
    reader = HeaderReader(io.BytesIO(bytes(1000)))
    assert len(reader.read(60)) == 60
    assert reader.seek(-10, os.SEEK_END) == 990
    assert len(reader.read()) == 10
    reader.seek(0)
    assert len(reader.read()) == 30
    assert reader.read(1) == b""


def killing(addresses: list[str]) -> dict[str, float]:
    """As a decoder's fault would end the process of those files."""
    if "bad" in addresses:
        os.kill(os.getpid(), signal.SIGKILL)
    return dict.fromkeys(addresses, 1.0)


def test_a_process_that_dies_takes_few_files_along(monkeypatch):
    monkeypatch.setattr(durations, "FILES", 2)
    monkeypatch.setattr(durations, "read_portion", killing)
    monkeypatch.setattr(durations, "MOST_PROCESSES", 1)
    addresses = [f"good{number}" for number in range(20)]
    addresses[6] = "bad"
    looked_at = []
    found = read_durations(addresses, looked_at.append)
    assert "bad" not in found
    assert len(found) >= 16
    assert looked_at[-1] == 20


def failing(addresses: list[str]) -> dict[str, float]:
    """As a process does that may start no thread."""
    if "bad" in addresses:
        raise RuntimeError("can't start new thread")
    return dict.fromkeys(addresses, 1.0)


def test_what_goes_wrong_with_a_portion_is_its_own(monkeypatch):
    monkeypatch.setattr(durations, "FILES", 2)
    monkeypatch.setattr(durations, "read_portion", failing)
    monkeypatch.setattr(durations, "MOST_PROCESSES", 1)
    addresses = [f"good{number}" for number in range(10)]
    addresses[3] = "bad"
    looked_at = []
    found = read_durations(addresses, looked_at.append)
    assert found.keys() == set(addresses) - {"bad", "good2"}
    assert looked_at == [2, 4, 6, 8, 10]


def test_where_no_process_can_be_started_nothing_is_told(monkeypatch):
    def refuse(*_):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(durations.ProcessPoolExecutor, "submit", refuse)
    looked_at = []
    assert read_durations(["a", "b"], looked_at.append) == {}
    assert looked_at == [2]


def test_a_portion_has_its_time():
    remaining = signal.getitimer(signal.ITIMER_REAL)
    assert read_portion(["/missing"]) == {}
    assert signal.getitimer(signal.ITIMER_REAL)[0] <= remaining[0]
