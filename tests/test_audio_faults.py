"""Decoding of damaged and malicious files: what is refused, and at what cost."""

import ctypes
import io
import os
import random
import socket
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from tests.helpers.peak_memory import decoded_elsewhere
from tests.helpers.tagged_files import matroska
from tests.support import audio_files as files
from whosaid.audio import decode, libav
from whosaid.audio.decode import Audio, AudioLimits, decode_audio, decoding_steps
from whosaid.errors import AudioTooLong, ClientError, InvalidAudio

LIMITS = AudioLimits(max_seconds=7_200, max_bytes=2**24)


def decoded(data: bytes, limits: AudioLimits = LIMITS) -> Audio:
    return decode_audio(data, 16_000, limits)


def float_wav(value: float, kind: str = "f32", rate: int = 44_100, channels: int = 1) -> bytes:
    samples = np.zeros((rate, channels))
    samples[rate // 2, 0] = value
    return files.wav_file(samples, rate, kind)


class TestFaults:
    @pytest.mark.parametrize(
        "data",
        [
            *(b"x", b"RIFF", bytes(5_000), b"hello " * 5_000, b"ID3" * 999, b"\x89PNG\r\n" * 99),
            *(b"<!doctype html><html></html>" * 20, b"PK\x03\x04" + bytes(500)),
            random.Random(0).randbytes(50_000),
        ],
    )
    def test_no_audio_at_all(self, data):
        with pytest.raises(InvalidAudio):
            decoded(data)

    def test_a_picture_is_no_audio(self, source):
        film = files.with_video(source, "mute.mp4", "-an", "-frames:v", "5")
        with pytest.raises(InvalidAudio, match="no audio stream found"):
            decoded(film)

    @pytest.mark.parametrize("count", [0, 1, 1_599])
    def test_less_than_a_tenth_of_a_second(self, count):
        with pytest.raises(InvalidAudio, match=r"less than 0\.1 s"):
            decoded(files.wav_file(np.zeros(count), 16_000))

    def test_a_tenth_of_a_second(self):
        assert decoded(files.wav_file(np.zeros(1_600), 16_000)).duration == 0.1

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -1.01e4])
    def test_implausible_samples(self, value):
        with pytest.raises(InvalidAudio, match="samples"):
            decoded(float_wav(value))
        with pytest.raises(InvalidAudio, match="samples"):
            decoded(float_wav(8 * value, "f64", channels=8))

    def test_doubles_beyond_float32(self):
        with pytest.raises(InvalidAudio, match="samples"):
            decoded(float_wav(1e300, "f64"))

    def test_loud_samples_are_not_changed(self):
        assert np.abs(decoded(float_wav(0.9e4, rate=16_000)).samples).max() == pytest.approx(0.9e4)

    @pytest.mark.parametrize("channels", [0, 9, 255, 65_535])
    def test_too_many_channels(self, channels):
        with pytest.raises(InvalidAudio, match=f"{channels} channels|no audio"):
            decoded(files.raw_wav(bytes(2**18), 16_000, channels, 8))

    @pytest.mark.parametrize("rate", [0, 1, 3_999, 384_001, 2**32 - 1])
    def test_rates_out_of_range(self, rate):
        with pytest.raises(InvalidAudio):
            decoded(files.raw_wav(bytes(100_000), rate))

    @pytest.mark.parametrize("rate", [4_000, 384_000])
    def test_the_lowest_and_highest_rate(self, rate):
        assert decoded(files.raw_wav(bytes(rate), rate)).duration == 0.5

    @pytest.mark.parametrize(
        "name", sorted(set(files.FORMATS) - {"a.m4a", "alac.m4a", "a.3gp", "a.mp2", "a.ac3"})
    )
    def test_a_file_cut_short_is_decoded_with_a_warning(self, every_format, name):
        whole = decoded(every_format[name])
        result = decoded(every_format[name][: len(every_format[name]) * 3 // 4])
        assert 0.5 < result.duration < 1.7
        assert result.warnings
        # The last packet is incomplete, or lacks the next one, with which it overlaps.
        intact = len(result.samples) - 2_000
        assert np.abs(result.samples[:intact] - whole.samples[:intact]).max() < 1e-6

    @pytest.mark.parametrize(
        ("name", "codec"), [("a.mkv", "aac"), ("a.avi", "mp3"), ("a.webm", "libopus")]
    )
    def test_a_film_cut_short_has_a_warning(self, source, name, codec):
        video = ("-c:v", "libvpx") if codec == "libopus" else ("-c:v", "mpeg4")
        film = files.with_video(source, name, "-c:a", codec, *video)
        assert decoded(film).warnings == ()
        assert "cut short" in "".join(decoded(film[: len(film) * 3 // 4]).warnings)

    @pytest.mark.parametrize("name", ["a.m4a", "alac.m4a", "a.3gp"])
    def test_a_file_cut_before_its_index_is_refused(self, every_format, name):
        with pytest.raises(InvalidAudio):
            decoded(every_format[name][: len(every_format[name]) * 6 // 10])

    @pytest.mark.parametrize(("name", "part"), [("a.aac", 2), ("a.flac", 2), ("a.wv", 3)])
    def test_damage_is_skipped_with_a_warning(self, every_format, name, part):
        data, place = every_format[name], len(every_format[name]) // part
        result = decoded(data[:place] + bytes(200) + data[place + 200 :])
        assert "silence" in "".join(result.warnings)
        assert 1.5 < result.duration < 2.1
        assert np.abs(result.samples).max() < 0.6

    @pytest.mark.parametrize("name", ["opus.ogg", "vorbis.ogg", "speex.ogg", "a.oga"])
    def test_a_damaged_page_of_an_ogg_has_a_warning(self, name):
        """libav leaves the page out, and Opus has no packets for silence either."""
        options = ("-c:a", "flac") if name == "a.oga" else files.FORMATS[name].split()
        speech = files.wav_file(files.speech(12.0), 16_000)
        data = files.encoded(speech, name, *options)
        assert decoded(data).warnings == ()
        middle, last = data.rfind(b"OggS", 0, len(data) // 2) + 100, data.rfind(b"OggS") + 100
        for place, told in ((middle, "damaged"), (last, "cut short")):
            damaged = decoded(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])
            assert told in damaged.warnings[-1]
        cut = decoded(data[:middle] + data[middle + 99 :])
        assert "damaged" in cut.warnings[-1]
        assert cut.duration == pytest.approx(12.0, abs=0.01)

    @pytest.mark.parametrize(
        ("form", "codec"),
        [
            *(("wav", "pcm_s16le"), ("wav", "mp3"), ("avi", "pcm_s16le"), ("avi", "mp3")),
            *(("avi", "ac3"), ("caf", "pcm_s16be"), ("au", "pcm_s16be"), ("matroska", "aac")),
        ],
    )
    def test_a_file_from_a_pipe_announces_no_length(self, source, form, codec):
        data = files.ffmpeg("-i", "-", "-c:a", codec, "-f", form, "-", source=source)
        result = decoded(data)
        assert result.warnings == ()
        assert result.duration == pytest.approx(2.0, abs=0.1)

    @pytest.mark.parametrize("name", ["a.flac", "a.tta", "a.wv"])
    def test_a_damaged_byte_moves_no_time(self, name):
        """libav returns no error for a FLAC frame beside others in a packet."""
        data = bytearray(files.encoded(files.wav_file(files.speech(15.0), 16_000), name))
        data[len(data) // 2] ^= 255
        result = decoded(bytes(data))
        assert "silence" in "".join(result.warnings)
        assert result.duration == 15.0

    def test_damaged_files_raise_only_documented_errors(self, every_format):
        whole = [*every_format.values(), files.amr_file(100)]
        rng = random.Random(0)
        outcomes = set()
        for number in range(80):
            try:
                result = decoded(
                    files.mutated(whole[number % len(whole)], whole, rng), AudioLimits(60, 2**20)
                )
            except ClientError as error:
                outcomes.add(error.code)
            else:
                outcomes.add("decoded")
                assert np.isfinite(result.samples).all()
                samples = result.duration * 16_000
                assert abs(len(result.samples) - samples) < libav.MAX_FORMAT_CHANGES
        assert {"decoded", "INVALID_AUDIO"} <= outcomes
        assert outcomes <= {"decoded", "INVALID_AUDIO", "AUDIO_TOO_LONG"}

    def test_nothing_is_printed(self, every_format, capfd):
        for data in every_format.values():
            decoded(data[:-100] if b"moov" not in data[-5_000:] else data)
        with pytest.raises(InvalidAudio):
            decoded(every_format["a.m4a"][:3_000])
        assert capfd.readouterr() == ("", "")


class Counted(io.BytesIO):
    """A file in memory that counts the bytes read from it."""

    bytes_read = 0

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        Counted.bytes_read += len(block)
        return block


TRACK = files.track(80_000_000, chunk=80_000_000)
BOMBS = {
    "flac with a length": lambda: files.silent_flac(10, announced=True),
    "flac without a length": lambda: files.silent_flac(10, announced=False),
    "one sample a second": lambda: files.raw_wav(bytes(100_000), 1, bits=8),
    "channels": lambda: files.raw_wav(bytes(2**18), 16_000, 65_535, 8),
    "index of gigabytes": lambda: files.mp4(TRACK),
    "index for every track": lambda: files.mp4(TRACK * 12),
    "edits": lambda: files.mp4(files.track(1_000, chunk=1_000, edits=1_000)),
}


class TestBounds:
    def test_the_duration_limit_is_exact(self):
        data = files.wav_file(np.zeros(16_001), 16_000)
        assert decoded(data, AudioLimits(16_001 / 16_000, 2**20)).duration == 16_001 / 16_000
        with pytest.raises(AudioTooLong):
            decoded(data, AudioLimits(1, 2**20))

    def test_the_byte_limit_holds_for_decoding_too(self, source):
        with pytest.raises(AudioTooLong):
            decoded(source, AudioLimits(7_200, len(source) - 1))

    @pytest.mark.parametrize("announced", [True, False])
    def test_too_long_is_refused_in_the_first_step(self, announced):
        data = files.silent_flac(2, announced)
        with pytest.raises(AudioTooLong):
            decoding_steps(data, 16_000, AudioLimits(3_600, 2**20)).send(None)

    def test_a_recording_is_decoded_up_to_the_duration_limit(self, monkeypatch):
        monkeypatch.setattr(libav, "limit_processor_time", lambda seconds: None)
        monkeypatch.setattr(libav, "BytesIO", Counted)
        monkeypatch.setattr(Counted, "bytes_read", 0)
        monkeypatch.setattr(libav._Recording, "share", 1.0)
        data = files.wav_file(np.zeros(16_000 * 300), 16_000)
        with pytest.raises(AudioTooLong):
            [*libav.decode(data, 16_000, 5, False, 30, decode.BUDGET)]
        assert Counted.bytes_read < len(data) / 10

    def test_decoding_reads_the_file_a_few_times_at_most(self, every_format, monkeypatch):
        monkeypatch.setattr(libav, "limit_processor_time", lambda seconds: None)
        monkeypatch.setattr(libav, "BytesIO", Counted)
        for data in every_format.values():
            monkeypatch.setattr(Counted, "bytes_read", 0)
            assert [*libav.decode(data, 16_000, 7_200, False, 1, decode.BUDGET)]
            assert Counted.bytes_read <= 4 * len(data) + 2**18

    def test_packets_are_counted_by_the_seconds_that_they_hold(self, monkeypatch):
        """In both passes over the file: of decoding, and of counting before it."""
        monkeypatch.setattr(libav, "limit_processor_time", lambda seconds: None)
        monkeypatch.setattr(libav, "FREE_PACKETS", 1_000)
        monkeypatch.setattr(libav, "PACKETS_PER_SECOND", 4_000)
        [*libav.decode(matroska(0, 20), 16_000, 7_200, False, 30, decode.BUDGET)]
        with pytest.raises(InvalidAudio, match="packets are far shorter"):
            [*libav.decode(matroska(0, 2), 16_000, 7_200, False, 30, decode.BUDGET)]
        with libav._opened(matroska(0, 2)) as recording, pytest.raises(InvalidAudio):
            [*recording.packet_seconds()]

    def test_the_expected_duration_follows_from_the_share_of_the_file(self, monkeypatch):
        monkeypatch.setattr(libav, "limit_processor_time", lambda seconds: None)
        noise = np.random.default_rng(0).normal(0, 0.1, 16_000 * 100)
        data = files.wav_file(noise, 16_000)
        for name in ("a.wav", "a.mp3", "a.m4a", "a.webm", "a.flac"):
            encoded = data if name == "a.wav" else files.encoded(data, name)
            work = libav.decode(encoded, 16_000, 7_200, False, 30, decode.BUDGET)
            assert [value[1] for value, _ in work] == pytest.approx([100] * 3, rel=0.05), name

    def test_decoding_has_a_budget_of_processor_time(self, monkeypatch):
        """20 s of silence at 192 kHz in eight channels, of 5 KB, take some 0.2 s."""
        silence = ["-f", "lavfi", "-i", "anullsrc=r=192000:cl=7.1", "-t", "20"]
        data = files.ffmpeg(*silence, "-c:a", "flac", "-frame_size", "65535", "-f", "flac", "-")
        assert decoded(data).duration == 20
        monkeypatch.setattr(decode, "BUDGET", (0.01, 0.0, 0.0001))
        with pytest.raises(InvalidAudio, match="takes too long"):
            decoded(data)

    @pytest.mark.parametrize(
        "name", ["concat", "dash", "hls", "imf", "sdp", "rtsp", "image2", "sbg"]
    )
    def test_demuxers_of_playlists_and_scripts_are_left_out(self, name):
        allowed = libav.OPTIONS["format_whitelist"].split(",")
        assert name not in allowed
        assert not [each for each in allowed if each.endswith("pipe")]
        assert libav.OPTIONS["protocol_whitelist"] == ""

    def test_an_index_that_repeats_itself_is_not_followed(self):
        with pytest.raises(InvalidAudio, match="repeatedly"):
            decoded(files.mp4(files.track(1_000, chunk=1_000, edits=1_000)))

    @pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
    def test_bombs_need_little_memory(self, source, tmp_path):
        results, grown = decoded_elsewhere(tmp_path, source, *(make() for make in BOMBS.values()))
        assert results == ["AUDIO_TOO_LONG"] * 2 + ["INVALID_AUDIO"] * 5
        assert grown < 64 << 20

    @pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
    def test_the_samples_are_held_once(self, tmp_path, monkeypatch):
        long = files.wav_file(np.zeros(16_000 * 240), 16_000)
        # As blocks beyond 32 MiB always do, those of this size grow where they are.
        monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**20))
        _, grown = decoded_elsewhere(tmp_path, long, long)
        assert grown < 1.5 * 4 * 16_000 * 240 + 12e6


IN_ACCESS, IN_OPEN = 0x1, 0x20


class Watch:
    """Detects opened files of `folder`, by inotify, and connections to a local port."""

    def __init__(self, folder: Path) -> None:
        library = ctypes.CDLL(None)
        self.folder = library.inotify_init1(os.O_NONBLOCK)
        assert library.inotify_add_watch(self.folder, os.fsencode(folder), IN_OPEN | IN_ACCESS) >= 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.port = self.server.getsockname()[1]

    def saw_something(self) -> bool:
        return self._files_opened() or self._called()

    def _files_opened(self) -> bool:
        try:
            return bool(os.read(self.folder, 2**16))
        except BlockingIOError:
            return False

    def _called(self) -> bool:
        try:
            self.server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self.folder)
        self.server.close()


PLAYLISTS = {
    "ffconcat": "ffconcat version 1.0\nfile '{0}'\n",
    "m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{0}\n#EXT-X-ENDLIST\n",
    "dash": (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        'mediaPresentationDuration="PT9S"><Period><AdaptationSet mimeType="audio/mp4">'
        '<Representation id="1" bandwidth="9"><BaseURL>{0}</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>"
    ),
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {1} RTP/AVP 0\n",
    "imf": (
        '<CompositionPlaylist xmlns="http://www.smpte-ra.org/schemas/2067-3/2016"><Id>{0}</Id>'
        "</CompositionPlaylist>"
    ),
    "pls": "[playlist]\nFile1={0}\n",
    "asx": '<asx><entry><ref href="{0}"/></entry></asx>',
    "concat": "concat:{0}|{0}",
    "plain": "{0}",
}


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
class TestNothingElseIsOpened:
    @pytest.fixture
    def watch(self, tmp_path, source, monkeypatch):
        (tmp_path / "secret.wav").write_bytes(source)
        monkeypatch.chdir(tmp_path)
        decoded(source)  # starts the confined process, for which Python lists the folder
        watch = Watch(tmp_path)
        yield watch
        watch.close()

    @pytest.mark.parametrize("kind", PLAYLISTS)
    @pytest.mark.parametrize(
        "place",
        [
            "secret.wav",
            "{folder}/secret.wav",
            "file:{folder}/secret.wav",
            "http://127.0.0.1:{port}/a.wav",
        ],
    )
    def test_a_playlist_opens_nothing(self, watch, tmp_path, kind, place):
        script = PLAYLISTS[kind].format(place.format(folder=tmp_path, port=watch.port), watch.port)
        with pytest.raises(InvalidAudio):
            decoded(script.encode())
        assert not watch.saw_something()

    def test_the_watch_sees_a_file_opened_by_an_unrestricted_decoder(self, watch):
        script = PLAYLISTS["ffconcat"].format("secret.wav").encode()
        with av.open(io.BytesIO(script), "r") as container:
            assert next(container.decode(audio=0)).samples
        assert watch.saw_something()
        assert not watch.saw_something()

    def test_the_watch_sees_a_connection(self, watch):
        socket.create_connection(("127.0.0.1", watch.port)).close()
        assert watch.saw_something()
