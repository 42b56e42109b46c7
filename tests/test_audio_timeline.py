"""Sound lies where its file says: late tracks, gaps, overlaps, damage, wrong timestamps."""

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers.nightly import some
from tests.support import audio_files as files
from whosaid.audio.decode import Audio, AudioLimits, decode_audio
from whosaid.audio.timeline import LONGEST_LOSS, LOOKAHEAD, Timeline
from whosaid.errors import AudioTooLong

RATE = 16_000
LIMITS = AudioLimits(max_seconds=600, max_bytes=2**26)
SECONDS = 12.0
SOUND = np.concatenate([files.speech(6.0), files.speech(6.0)[::-1]])
WAV = files.wav_file(SOUND, RATE)


def decoded(data: bytes, limits: AudioLimits = LIMITS, separate: bool = False) -> Audio:
    return decode_audio(data, RATE, limits, separate)


def delays(audio: Audio, *begins: float) -> list[float]:
    """Return the seconds by which sound from each of `begins` on lies later than in the source."""
    found = []
    for begin in begins:
        second = SOUND[round(begin * RATE) : round((begin + 1) * RATE)]
        size = 2 ** (len(audio.samples) + RATE).bit_length()
        spectrum = np.fft.rfft(audio.samples, size) * np.fft.rfft(second, size).conj()
        delay = int(np.fft.irfft(spectrum, size)[: len(audio.samples)].argmax()) / RATE
        found.append(delay - begin)
    return found


def in_place(audio: Audio, *begins: float, later: float = 0.0) -> bool:
    return delays(audio, *begins) == pytest.approx([later] * len(begins), abs=0.08)


def with_film(name: str, *options: str) -> bytes:
    return files.with_video(WAV, name, *options)


LATE = {
    "a.mp4": "-c:v libx264 -c:a aac", "a.ts": "-c:v libx264 -c:a aac",
    "a.flv": "-c:v flv -c:a libmp3lame -ar 44100", "a.ogv": "-c:v libtheora -c:a libvorbis",
    "a.mov": "-c:v libx264 -c:a alac", "a.mkv": "-c:v libx264 -c:a aac",
    "a.webm": "-c:v libvpx -c:a libopus", "a.mpg": "-c:v mpeg2video -r 25 -c:a mp2",
    "a.wmv": "-c:v wmv2 -c:a wmav2", "a.nut": "-c:v mpeg4 -c:a libmp3lame",
}  # fmt: skip


class TestLateSound:
    @pytest.mark.parametrize("name", some(4, LATE))
    def test_sound_that_begins_behind_the_picture_stays_there(self, name):
        found = decoded(with_film(name, "-af", "asetpts=PTS+5/TB", *LATE[name].split()))
        assert in_place(found, 0.5, 9.5, later=5.0)
        assert found.duration == pytest.approx(5 + SECONDS, abs=0.1)
        assert found.warnings == ()
        assert np.abs(found.samples[: 4 * RATE]).max() == 0

    def test_a_picture_that_begins_later_moves_no_sound(self):
        film = with_film("a.ts", "-vf", "setpts=PTS+3/TB", *LATE["a.ts"].split())
        assert in_place(decoded(film), 0.5, 9.5)

    def test_separate_channels_begin_later_together(self):
        stereo = files.wav_file(np.stack([SOUND, SOUND / 2], 1), RATE)
        options = ["-af", "asetpts=PTS+5/TB", "-c:v", "libx264", "-c:a", "flac", "-ac", "2"]
        found = decoded(files.with_video(stereo, "a.mkv", *options), separate=True)
        assert [len(channel) for channel in found.channels] == [17 * RATE] * 2
        assert np.abs(found.channels[1][: 4 * RATE]).max() == 0

    @pytest.mark.parametrize("codec", some(1, ["pcm_u8", "libopus"]))
    def test_eight_channels_have_gaps_too(self, codec):
        each = np.stack([SOUND / (1 + channel) for channel in range(8)], 1)
        options = ["-af", "asetpts=PTS+2/TB+gt(T\\,6)*3/TB", "-c:v", "libx264", "-c:a", codec]
        found = decoded(files.with_video(files.wav_file(each, RATE), "a.mkv", *options))
        assert delays(found, 0.5, 8.5) == pytest.approx([2, 5], abs=0.02)

    def test_lone_sound_begins_at_once_with_a_warning(self):
        found = decoded(files.encoded(WAV, "a.m4a", "-af", "asetpts=PTS+5/TB"))
        assert in_place(found, 0.5, 9.5)
        assert len(found.warnings) == 1
        assert found.warnings[0].endswith("s before the first sound: times count from that sound")

    @pytest.mark.parametrize("name", some(2, ["opus.ogg", "a.ts", "a.wma", "a.mkv"]))
    def test_a_clock_that_begins_at_100_seconds_is_no_silence(self, name):
        codec = files.FORMATS.get(name, "-c:a aac").split()
        found = decoded(files.encoded(WAV, name, *codec, "-output_ts_offset", "100"))
        assert in_place(found, 0.5, 9.5)
        assert found.duration == pytest.approx(SECONDS, abs=0.1)
        assert found.warnings == ()


GAPS = {
    "a.webm": "-c:a libopus", "opus.ogg": "-c:a libopus", "aac.mp4": "-c:a aac",
    "aac.ts": "-c:a aac", "a.mka": "-c:a flac", "opus.mkv": "-c:a libopus",
    "opus.mp4": "-c:a libopus", "aac.mkv": "-c:a aac", "aac.mov": "-c:a aac", "aac.flv": "-c:a aac",
    "fragmented.mp4": "-c:a aac -movflags frag_keyframe+empty_moov", "flac.ogg": "-c:a flac",
}  # fmt: skip


class TestGaps:
    @pytest.mark.parametrize("name", some(5, GAPS))
    def test_sound_after_missing_packets_keeps_its_time(self, name):
        missing = ["-af", "aselect='not(between(t,4,7))'"]
        found = decoded(files.encoded(WAV, name, *missing, *GAPS[name].split()))
        assert in_place(found, 0.5, 2.5, 7.5, 10.5)
        assert found.duration == pytest.approx(SECONDS, abs=0.1)
        silent = found.samples[round(4.3 * RATE) : round(6.7 * RATE)]
        assert np.abs(silent).max() < 0.01
        # Opus leaves out what is silent: nothing is missing then.
        expected = 0 if "opus" in GAPS[name] else 1
        assert len(found.warnings) == expected
        assert all("no sound for 2.9" in it or "no sound for 3.0" in it for it in found.warnings)

    def test_many_short_ones_do_not_add_up(self):
        """Some encoders send nothing during silence."""
        missing = ["-af", "aselect='lt(mod(t,1),0.7)'"]
        found = decoded(files.encoded(WAV, "a.webm", *missing, "-c:a", "libopus"))
        assert found.duration == pytest.approx(SECONDS, abs=0.4)
        assert delays(found, 10.0)[0] == pytest.approx(0, abs=0.1)

    def test_a_gap_counts_for_the_limit(self):
        missing = ["-af", "asetpts=PTS+gt(T\\,6)*3600/TB"]
        data = files.encoded(WAV, "a.mka", *missing, "-c:a", "flac")
        with pytest.raises(AudioTooLong):
            decode_audio(data, 16_000, LIMITS)


DAMAGE = {
    "a.m4a": "-c:a aac", "a.webm": "-c:a libopus", "vorbis.ogg": "-c:a libvorbis",
    "a.mp3": "-b:a 64k", "a.aac": "", "aac.mkv": "-c:a aac", "opus.ogg": "-c:a libopus",
    "flac.ogg": "-c:a flac", "a.mka": "-c:a flac", "a.flac": "", "a.ac3": "", "a.mp2": "",
    "a.ts": "-c:a aac",
}  # fmt: skip


class TestDamage:
    # Both kinds for every codec that has several containers.
    @pytest.mark.parametrize(
        ("name", "kind"), some(5, zip(DAMAGE, itertools.cycle(["zeros", "noise"]), strict=False))
    )
    def test_sound_after_damage_keeps_its_time(self, name, kind):
        data = bytearray(files.encoded(WAV, name, *DAMAGE[name].split()))
        begin, end = len(data) * 40 // 100, len(data) * 50 // 100
        noise = random.Random(0).randbytes(end - begin)
        data[begin:end] = bytes(end - begin) if kind == "zeros" else noise
        found = decoded(bytes(data))
        # The rate of AAC varies: how long its lost bytes lasted is estimated.
        most = 0.25 if name == "a.aac" else 0.08
        assert delays(found, 0.5, 2.5, 10.5) == pytest.approx([0] * 3, abs=most)
        assert found.duration == pytest.approx(SECONDS, abs=0.25)
        assert found.warnings or "opus" in name or name == "a.webm"

    def test_tags_between_the_frames_of_mp3_are_no_damage(self):
        """Joined files have their cover pictures between frames."""
        halves = [files.wav_file(half, RATE) for half in np.split(SOUND, 2)]
        tag = b"ID3\x04\0\0" + bytes([0, 2, 0x20, 0]) + random.Random(0).randbytes(2**15 + 2**12)
        joined = b"".join(tag + files.encoded(it, "a.mp3", "-id3v2_version", "0") for it in halves)
        found = decoded(joined)
        assert delays(found, 0.5, 4.5, 6.5, 10.5) == pytest.approx([0] * 4, abs=0.15)
        assert found.duration == pytest.approx(SECONDS, abs=0.2)


class TestJoinedFiles:
    @pytest.mark.parametrize("name", some(2, ["a.ts", "opus.ogg", "a.webm", "a.flac", "a.mp3"]))
    def test_concatenated_files_decode_completely(self, name):
        codec = files.FORMATS.get(name, "-c:a aac").split()
        halves = [files.wav_file(half, RATE) for half in np.split(SOUND, 2)]
        found = decoded(b"".join(files.encoded(half, name, *codec) for half in halves))
        # Encoders add silence before and behind each part.
        assert found.duration == pytest.approx(SECONDS, abs=0.2)
        assert delays(found, 0.5, 4.5, 6.5, 10.5) == pytest.approx([0] * 4, abs=0.15)

    def test_overlapping_packets_are_dropped_with_a_warning(self):
        """A recorder may repeat the last two seconds after an interruption."""
        begin = files.wav_file(SOUND[: 6 * RATE], RATE)
        rest = files.wav_file(SOUND[4 * RATE :], RATE)
        again = ("-c:a", "mp2", "-output_ts_offset")
        parts = files.encoded(begin, "a.ts", *again, "0"), files.encoded(rest, "a.ts", *again, "4")
        found = decoded(b"".join(parts))
        assert in_place(found, 0.5, 4.5, 7.0, 10.5)
        assert found.duration == pytest.approx(SECONDS, abs=0.1)
        (warning,) = found.warnings
        assert "of sound that lie over what came before were left out" in warning


class TestWavSizes:
    @pytest.mark.parametrize("size", [0, 2_000_000_000, 2**31 - 1, 2**32 - 1])
    def test_unknown_size_gives_no_warning(self, size):
        data = bytearray(WAV)
        place = data.index(b"data")
        data[place + 4 : place + 8] = size.to_bytes(4, "little")
        assert decoded(bytes(data)).warnings == ()

    def test_truncated_file_gives_a_warning(self):
        (warning,) = decoded(WAV[: len(WAV) // 2]).warnings
        assert warning == "the file is cut short: 6.00 s could be decoded"


def timeline(duration: float | None = None, name: str = "matroska,webm") -> Timeline:
    stream: Any = SimpleNamespace(time_base=Fraction(1, 1_000))
    return Timeline(name, stream, 0.0, duration)


def packets(*starts: int, lasting: int = 20) -> list[Any]:
    """Packets of so many milliseconds, which begin at these."""
    return [SimpleNamespace(pts=start, dts=start, duration=lasting) for start in starts]


def placed(line: Timeline, found: list[Any]) -> Iterator[float]:
    """Return the starts of packets on the timeline, without the packets left out."""
    for packet in line.steady(found):
        offset = line.offset(line.seconds(packet))
        seconds = packet.duration / 1_000
        if offset > -seconds:
            line.position += offset
            yield round(line.position, 3)
            line.position += seconds


class TestWrongTimestamps:
    def test_an_even_clock_is_followed(self):
        starts = list(range(0, 4_000, 20))
        assert list(placed(timeline(), packets(*starts))) == [start / 1_000 for start in starts]

    @pytest.mark.parametrize("wrong", [1, 8, 40])
    @pytest.mark.parametrize("hours", [0.01, 1, -1])
    def test_a_jump_that_is_taken_back_moves_nothing(self, wrong, hours):
        starts = list(range(0, 6_000, 20))
        for place in range(100, 100 + wrong):
            starts[place] += round(hours * 3_600_000)
        found = list(placed(timeline(), packets(*starts)))
        assert found[-1] == pytest.approx(5.98, abs=0.11)
        assert len(found) == 300

    def test_clock_that_stops_after_a_jump_is_ignored(self):
        """Muxers write such timestamps behind a wrong one, as they may not fall."""
        starts = [*range(0, 2_000, 20), *range(3_600_000, 3_600_200)]
        found = list(placed(timeline(), packets(*starts)))
        assert found == [place * 0.02 for place in range(300)] or len(found) == 300
        assert found[-1] == pytest.approx(5.98)

    def test_a_jump_beyond_the_files_end_is_no_gap(self):
        starts = [*range(0, 2_000, 20), *range(7_200_000, 7_204_000, 20)]
        line = timeline(duration=6.0)
        found = list(placed(line, packets(*starts)))
        assert (len(found), found[-1]) == (300, pytest.approx(5.98))
        assert line.jumps == [(pytest.approx(2.0), pytest.approx(7_198.0))]
        assert list(placed(timeline(), packets(*starts)))[-1] == pytest.approx(7_203.98)

    def test_broadcasts_change_their_clock(self):
        far = round(LONGEST_LOSS * 1_000) + 2_000
        for start, expected in ((far - 100, far - 80), (far + 200, 2_020)):
            starts = [*range(0, 2_000, 20), start, start + 20]
            found = list(placed(timeline(name="mpegts"), packets(*starts)))
            assert found[-1] == pytest.approx(expected / 1_000)

    def test_packets_without_timestamps_follow_each_other(self):
        found = packets(*range(0, 4_000, 20))
        for packet in found[50:]:
            packet.pts = None
        assert list(placed(timeline(), found))[-1] == pytest.approx(3.98)

    @pytest.mark.parametrize("count", [0, 1, LOOKAHEAD, LOOKAHEAD + 1])
    def test_every_packet_comes_once_in_order(self, count):
        found = packets(*range(0, 20 * count, 20))
        assert list(timeline().steady(found)) == found
