"""Base64, and decoding of signals whose samples are known, in every supported format."""

import base64
import random
from importlib.metadata import version
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.nightly import some
from tests.helpers.refusals import refused
from tests.support import audio_files as files
from whosaid.audio import decode
from whosaid.audio.decode import Audio, AudioLimits, decode_audio, decode_base64, decoding_steps
from whosaid.errors import AudioTooLong, InvalidAudio
from whosaid.scheduling.steps import run_steps

LIMITS = AudioLimits(max_seconds=7_200, max_bytes=2**24)
EDGE = 800  # samples that a resampler or a lossy codec may blur at either end
WRONG_BASE64 = [
    *("", " \n", "data:audio/wav;base64,", "Q", "QQ=", "QQ===", "QUJD====", "QUJD=", "="),
    *("====", "QQ==QQ==", "QU=I", "_-8_-", "data:audio/wav,QUI=", "data:a\n;base64,QUI="),
    *("QUI=data:;base64,QUI=", "https://a.example/b.wav", "/a/talk.wav", "file:///etc/passwd"),
    "QUI\u00a0=",
]


def decoded(data: bytes, sampling_rate: int = 16_000, limits: AudioLimits = LIMITS) -> Audio:
    return decode_audio(data, sampling_rate, limits)


def separate(data: bytes) -> Audio:
    return decode_audio(data, 16_000, LIMITS, separate=True)


def max_error(samples, truth) -> float:
    """The largest difference, without the ends; lengths may differ by one sample."""
    assert abs(len(samples) - len(truth)) <= 1
    size = min(len(samples), len(truth))
    return float(np.abs(samples[:size] - truth[:size])[EDGE:-EDGE].max())


def cross_correlate(samples, truth) -> tuple[int, float]:
    """The delay of `samples` against `truth`, in samples, and the correlation at that delay."""
    size = 2 ** (len(samples) + len(truth)).bit_length()
    cross = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(truth, size).conj(), size)
    lag = int(cross.argmax())
    correlation = float(cross.max() / np.linalg.norm(samples) / np.linalg.norm(truth))
    return lag - size * (lag > size // 2), correlation


class TestBase64:
    @pytest.mark.parametrize("text", WRONG_BASE64)
    def test_anything_else_is_refused(self, text):
        with pytest.raises(InvalidAudio):
            decode_base64(text, LIMITS)

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("https://example.com/a.mp3", "a URL"),
            (" s3://bucket/a", "a URL"),
            ("talk.mp3", "a file name"),
            ("/home/anna/m\u00fcsli talk.m4a\n", "a file name"),
        ],
    )
    def test_addresses_and_file_names_are_refused_by_kind(self, text, kind):
        with pytest.raises(InvalidAudio, match=f"inputs is {kind}; send the file itself as base64"):
            decode_base64(text, LIMITS)

    def test_bytes_are_returned_unchanged(self):
        assert decode_base64(b"QUI=", LIMITS) == b"QUI="
        with pytest.raises(InvalidAudio):
            decode_base64(b"", LIMITS)

    @pytest.mark.parametrize("size", [9, 10, 11, 12])
    def test_the_byte_limit_is_exact(self, size):
        limits = AudioLimits(1, size)
        for data in (b"x" * size, base64.b64encode(b"x" * size).decode()):
            assert decode_base64(data, limits) == b"x" * size
        for data in (b"x" * (size + 1), base64.b64encode(b"x" * (size + 1)).decode()):
            with pytest.raises(AudioTooLong):
                decode_base64(data, limits)

    def test_too_much_text_is_refused_before_it_is_decoded(self, monkeypatch):
        monkeypatch.setattr(decode.binascii, "a2b_base64", None)
        with pytest.raises(AudioTooLong):
            decode_base64("QUJD" * 100, AudioLimits(1, 299))


class TestSamples:
    def test_16_khz_is_not_resampled(self):
        integers = np.random.default_rng(0).integers(-(2**15), 2**15, 20_000)
        result = decoded(files.wav_file(integers / 2**15, 16_000))
        assert result.samples.dtype == np.float32
        assert np.array_equal(result.samples, integers.astype(np.float32) / 2**15)
        assert (result.duration, result.warnings) == (1.25, ())

    @pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
    @pytest.mark.parametrize("sampling_rate", [16_000, 44_100])
    def test_every_rate_keeps_the_signal_in_place(self, rate, sampling_rate):
        seconds = round(1.2345 * rate) / rate
        result = decoded(files.wav_file(files.chirp(rate, seconds), rate), sampling_rate)
        assert result.duration == seconds
        assert max_error(result.samples, files.chirp(16_000, seconds)) < 5e-4

    @pytest.mark.parametrize(
        ("kind", "step"),
        [("u8", 8e-3), ("s16", 5e-5), ("s24", 1e-6), ("s32", 1e-6), ("f32", 1e-6), ("f64", 1e-6)],
    )
    def test_every_kind_of_sample(self, kind, step):
        truth = files.chirp(16_000, 0.5)
        assert max_error(decoded(files.wav_file(truth, 16_000, kind)).samples, truth) < step

    @pytest.mark.parametrize("channels", range(1, 9))
    def test_channels_are_averaged(self, channels):
        levels, chirp = 0.5 / 2.0 ** np.arange(channels), files.chirp(16_000, 0.5)
        result = decoded(files.wav_file(np.outer(chirp, levels), 16_000, "f32"))
        assert max_error(result.samples, levels.mean() * chirp) < 1e-6

    @pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
    @pytest.mark.parametrize(("kind", "step", "offset"), [("s16", 1e-4, -0.7), ("f32", 1e-5, 0.02)])
    def test_a_constant_offset_is_removed(self, rate, kind, step, offset):
        noise = 0.1 * np.random.default_rng(0).normal(size=2 * rate).clip(-2.5, 2.5)
        noise -= noise.mean()
        found = decoded(files.wav_file(noise + offset, rate, kind)).samples
        truth = decoded(files.wav_file(noise, rate, kind)).samples
        # A resampler rings where the file begins and ends with a step.
        inside = slice(None) if rate == 16_000 else slice(EDGE, -EDGE)
        assert max_error(found[inside], truth[inside]) < step

    def test_a_mean_that_is_no_offset_stays(self):
        noise = 0.1 * np.random.default_rng(0).normal(size=20_000).astype(np.float32)
        noise += 0.004 - noise.mean()
        assert np.array_equal(decoded(files.wav_file(noise, 16_000, "f32")).samples, noise)

    def test_constant_samples_become_silence(self):
        result = decoded(files.wav_file(np.full(8_000, 0.5), 16_000, "f32"))
        assert np.abs(result.samples).max() < 1e-6

    @pytest.mark.parametrize(
        ("sampling_rate", "loudness"), [(8_000, 0), (11_025, 0), (16_000, 0.5), (48_000, 0.5)]
    )
    def test_frequencies_above_half_the_sampling_rate_are_removed(self, sampling_rate, loudness):
        result = decoded(files.wav_file(files.tone(44_100, 1, 6_500), 44_100), sampling_rate)
        assert np.abs(result.samples[EDGE:-EDGE]).max() == pytest.approx(loudness, abs=0.01)

    def test_no_more_samples_than_the_duration_holds(self):
        for count in range(4_410, 4_430):
            result = decoded(files.wav_file(files.chirp(44_100, 0.2)[:count], 44_100), 48_000)
            assert result.duration == count / 44_100
            assert count * 16_000 / 44_100 - 1 < len(result.samples) < count * 16_000 / 44_100 + 1


LOSSLESS = ["a.wav", "a.flac", "alac.m4a", "a.mka", "a.aiff", "a.au", "a.caf", "a.w64"]
# These formats do not store how much padding the encoder added: seconds of tolerance.
PADDED = dict.fromkeys(("a.aac", "a.mp2", "a.ac3", "fragmented.mp4"), 0.05)
PADDED |= {"a.flv": 0.08, "a.wma": 0.08, "adpcm.wav": 0.04, "speex.ogg": 0.02}
# Before the FFmpeg of PyAV 19 the last frame of AAC in MP4 keeps what its encoder added.
AAC_PADDING = 0 if int(version("av").partition(".")[0]) >= 19 else 0.05
if AAC_PADDING:
    PADDED |= dict.fromkeys(("a.m4a", "faststart.m4a", "a.3gp"), AAC_PADDING)

# Formats that few recorders write: file name -> what ffmpeg is told.
OTHERS = {
    "dts.mkv": "-c:a dca", "dts.ts": "-c:a dca -ar 48000", "a.dts": "", "truehd.mkv": "-c:a truehd",
    "mlp.mkv": "-c:a mlp", "s302m.ts": "-c:a s302m -ar 48000 -ac 2",
    "g722.wav": "-c:a g722 -ar 16000", "g723.wav": "-c:a g723_1 -ar 8000",
    "g726.wav": "-c:a g726 -ar 8000", "yamaha.wav": "-c:a adpcm_yamaha",
    "nellymoser.flv": "-c:a nellymoser", "real.rm": "-c:a real_144 -ar 8000", "a.latm": "-c:a aac",
    "a.voc": "", "a.nut": "", "384 kHz.wav": "-ar 384000",
}  # fmt: skip


def two_tracks(source: bytes, undecodable: list[int]) -> bytes:
    """A film's sounds, of 400 and 900 Hz, some of them in a codec that libav only knows by name."""
    first = files.wav_file(files.tone(16_000, 1, 400), 16_000)
    second = "-f lavfi -i sine=900:duration=1:sample_rate=16000 -map 0 -map 1 -c:a aac"
    film = bytearray(files.encoded(first, "a.mov", *second.split(), "-disposition:a:1", "default"))
    places = [place for place in range(len(film)) if film[place : place + 4] == b"stsd"]
    for track in undecodable:
        place = places[track]
        film[place + 16 : place + 20] = b"apac"
        extension = film.index(b"wave", place)
        film[extension : extension + 4] = b"dapa"
    return bytes(film)


class TestFormats:
    @pytest.mark.parametrize("name", LOSSLESS)
    def test_lossless(self, every_format, name):
        result = decoded(every_format[name])
        assert (result.duration, result.warnings) == (2.0, ())
        assert max_error(result.samples, files.chirp(16_000, 2.0)) < 1e-4

    @pytest.mark.parametrize("name", sorted(set(files.FORMATS) - set(LOSSLESS)))
    def test_lossy(self, every_format, name):
        result = decoded(every_format[name])
        padding = PADDED.get(name, 0)
        lag, correlation = cross_correlate(result.samples, files.chirp(16_000, 2.0))
        assert result.warnings == ()
        assert abs(result.duration - 2.0) <= (padding or 1e-3)
        assert correlation > (0.9 if name == "speex.ogg" else 0.97)
        assert abs(lag) <= 16_000 * (padding or 1e-3)

    def test_amr_as_ffmpegs_program_decodes_it(self):
        data = files.amr_file(50)
        result = decoded(data)
        options = ("-f", "amr", "-i", "-", "-f", "wav", "-c:a", "pcm_f32le", "-")
        program = files.ffmpeg(*options, source=data)
        assert result.duration == 1.0
        assert max_error(result.samples, decoded(program).samples) < 1e-3

    @pytest.mark.parametrize(
        ("channels", "name"), some(2, product((6, 2), ("faststart.m4a", "a.ac3")))
    )
    def test_surround_is_averaged_in_every_codec(self, channels, name):
        tones = [files.tone(48_000, 1.0, 300 + 100 * channel) for channel in range(channels)]
        data = files.encoded(files.wav_file(np.stack(tones, axis=1), 48_000), name)
        program = files.ffmpeg("-i", "-", "-f", "f32le", "-", source=data)
        mean = np.frombuffer(program, "<f4").reshape(-1, channels).mean(axis=1)
        truth = decoded(files.wav_file(mean, 48_000, "f32")).samples
        result = decoded(data).samples  # may be shorter, as the program keeps AAC's padding
        assert max_error(result, truth[: len(result)]) < 1e-3

    def test_an_index_at_the_end(self):
        """The index lies behind more bytes than one read takes."""
        source = files.chirp(16_000, 20)
        data = files.encoded(files.wav_file(source, 16_000), "a.m4a")
        assert data.rindex(b"moov") > data.index(b"mdat") + 2**16
        result = decoded(data)
        assert result.duration == pytest.approx(20, abs=0.07)
        assert cross_correlate(result.samples, source)[1] > 0.99

    @pytest.mark.parametrize(
        ("name", "codecs"),
        [("a.avi", "-c:v mpeg4 -c:a pcm_s16le"), ("a.ts", "-c:v libx264 -c:a mp2")],
    )
    def test_the_audio_of_a_video(self, source, name, codecs):
        result = decoded(files.with_video(source, name, *codecs.split()))
        assert result.duration == pytest.approx(2.0, abs=0.06)
        assert cross_correlate(result.samples, files.chirp(16_000, 2.0))[1] > 0.95

    @pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.m4a"])
    def test_a_cover_picture_is_ignored(self, source, name):
        codec = "png" if name == "a.flac" else "mjpeg"
        picture = f"-c:v {codec} -frames:v 1 -disposition:v attached_pic"
        inputs = "-f lavfi -i testsrc=size=64x48:duration=0.1 -map 0:a -map 1:v"
        data = files.encoded(source, name, *inputs.split(), *picture.split())
        assert decoded(data).duration == pytest.approx(2.0, abs=PADDED.get(name, 0))

    def test_the_best_of_two_audio_streams(self):
        second = "-f lavfi -i sine=900:duration=1:sample_rate=16000 -map 0 -map 1 -c:a pcm_s16le"
        first = files.wav_file(files.tone(16_000, 1, 400), 16_000)
        result = decoded(files.encoded(first, "two.mka", *second.split()))
        assert files.pitch(result.samples) == pytest.approx(400, abs=2)
        assert result.warnings == ("the file has 2 audio streams: stream 0 was decoded",)

    @pytest.mark.parametrize("name", some(4, OTHERS))
    def test_other_formats_of_libav_decode(self, source, name):
        options = OTHERS[name].split()
        result = decoded(files.encoded(source, name, "-strict", "-2", *options))
        assert result.duration == pytest.approx(2.0, abs=0.12)
        rate = 8_000 if "8000" in options else 16_000
        lag, correlation = cross_correlate(result.samples, files.chirp(16_000, 2.0))
        assert (abs(lag) < 1_500, correlation > (0.5 if rate == 8_000 else 0.9)) == (True, True)

    @pytest.mark.parametrize("undecodable", [[0], [1]])
    def test_a_track_that_can_be_decoded_is_chosen(self, source, undecodable):
        """Films of phones have a second, spatial track, and both are default tracks."""
        result = decoded(two_tracks(source, undecodable))
        assert files.pitch(result.samples) == pytest.approx(900 if 0 in undecodable else 400, abs=2)
        told = f"the file has 2 audio streams: stream {1 - undecodable[0]} was decoded"
        assert result.warnings == (told,)

    def test_a_codec_that_cannot_be_decoded_is_named(self, source):
        with pytest.raises(InvalidAudio, match=r"codec is not supported: \w*apac$"):
            decoded(two_tracks(source, [0, 1]))
        with pytest.raises(InvalidAudio, match=r"codec is not supported: sonic$"):
            decoded(files.encoded(source, "a.mkv", "-c:a", "sonic", "-strict", "-2"))

    def test_data_before_the_audio_is_skipped(self, every_format):
        tag = b"ID3\x04\0\0" + bytes([0, 0, 0x20, 0]) + random.Random(0).randbytes(4_096)
        chunk = b"JUNK" + (1_000).to_bytes(4, "little") + random.Random(0).randbytes(1_000)
        wav = every_format["a.wav"]
        assert decoded(tag + every_format["a.mp3"]).duration == 2.0
        assert decoded(wav[:12] + chunk + wav[12:]).duration == 2.0

    @pytest.mark.parametrize("name", ["a.aac", "a.mp3"])
    def test_rate_and_channels_may_change_within_a_file(self, name):
        low = files.wav_file(files.tone(22_050, 1, 300), 22_050)
        high = files.wav_file(np.tile(files.tone(44_100, 1, 900)[:, None], 2), 44_100)
        result = decoded(files.encoded(low, name) + files.encoded(high, name))
        assert result.duration == pytest.approx(2.0, abs=0.2)
        assert files.pitch(result.samples[2_000:14_000]) == pytest.approx(300, abs=2)
        assert files.pitch(result.samples[-14_000:-2_000]) == pytest.approx(900, abs=2)

    def test_endless_changes_of_format_are_refused(self):
        wavs = [files.wav_file(np.zeros(rate // 10), rate) for rate in (16_000, 22_050)]
        links = [files.encoded(each, "a.aac") for each in wavs]
        with pytest.raises(InvalidAudio, match="format changes"):
            decoded(b"".join(links) * 60)


class TestSeparateChannels:
    @pytest.mark.parametrize(
        ("rate", "channels"), [(44_100, 1), (8_000, 2), (44_100, 5), (16_000, 8)]
    )
    def test_each_channel_equals_a_file_of_it_alone(self, rate, channels):
        levels = 0.5 / 2.0 ** np.arange(channels)
        each = [level * files.chirp(rate, 1.0)[:: (-1) ** k] for k, level in enumerate(levels)]
        result = separate(files.wav_file(np.stack(each, axis=1), rate, "f32"))
        assert (result.duration, result.seconds) == (1.0, channels)
        for heard, alone in zip(result.channels, each, strict=True):
            assert np.array_equal(heard, decoded(files.wav_file(alone, rate, "f32")).samples)

    def test_opposite_phase_is_nothing_to_them(self):
        loud = files.speech(2.0)
        result = separate(files.wav_file(np.stack([loud, -loud], 1), 16_000, "f32"))
        assert result.warnings == ()
        assert np.array_equal(result.channels[0], -result.channels[1])

    def test_late_second_channel_starts_with_silence(self):
        """Later sound keeps its time when the number of channels changes."""
        one = files.wav_file(files.tone(16_000, 1, 300), 16_000)
        two = np.stack([files.tone(16_000, 1, 500), files.tone(16_000, 1, 900)], axis=1)
        parts = [files.encoded(each, "a.aac") for each in (one, files.wav_file(two, 16_000), one)]
        first, second = separate(b"".join(parts)).channels
        assert len(first) == len(second)
        middle = slice(19_000, 30_000)
        assert not second[:15_000].any()
        assert not second[36_000:].any()
        assert files.pitch(first[2_000:14_000]) == pytest.approx(300, abs=2)
        assert files.pitch(first[middle]) == pytest.approx(500, abs=2)
        assert files.pitch(second[middle]) == pytest.approx(900, abs=2)

    def test_long_recordings_are_refused_before_they_are_decoded(self):
        data = files.encoded(files.wav_file(np.zeros((16_000 * 8, 8)), 16_000), "a.flac")
        with refused("AUDIO_TOO_LONG"):
            run_steps(decoding_steps(data, 16_000, AudioLimits(60, 2**24), separate=True))


def test_memory_does_not_grow_with_the_length_of_mono():
    data = files.encoded(files.wav_file(np.zeros(48_000 * 900, np.float32), 48_000), "a.flac")
    assert len(decoded(data).samples) == 16_000 * 900


class TestOppositePhase:
    """Two channels of which one is the other's negative, as from a cable with swapped wires."""

    @pytest.fixture
    def noise(self):
        return np.random.default_rng(0).normal(size=128_000)

    @pytest.mark.parametrize("share", [-1.0, -0.9])
    def test_the_loudest_channel_is_taken_with_a_warning(self, share):
        loud = files.speech(4.0)
        found = decoded(files.wav_file(np.stack([loud * share, loud], 1), 16_000, "f32"))
        # Of two that are equally loud the first is taken.
        assert np.array_equal(np.abs(found.samples), np.abs(loud.astype(np.float32)))
        (warning,) = found.warnings
        assert warning.startswith("the channels cancel each other out for 4.00 s")

    @pytest.mark.parametrize("level", [-20, -10, 0])
    @pytest.mark.parametrize("sound", ["hum", "noise"])
    def test_hum_and_noise_in_equal_phase_do_not_hide_it(self, sound, level, noise):
        """A balanced line on a stereo input has such noise. `level`: dB relative to the voice."""
        voice = np.tile(files.speech(4.0), 2)
        times = np.arange(len(voice)) / 16_000
        waves = {"hum": sum(np.sin(314 * k * times) / k for k in range(1, 8)), "noise": noise}
        added = waves[sound] * 10 ** (level / 20) * voice.std() / waves[sound].std()
        left = (0.2 * (added + voice)).astype(np.float32)
        right = (0.2 * (added - voice)).astype(np.float32)
        found = decoded(files.wav_file(np.stack([left, right], 1), 16_000, "f32"))
        assert np.array_equal(found.samples, left) or np.array_equal(found.samples, right)
        assert found.warnings[0].startswith("the channels cancel each other out for 8.00 s")

    @pytest.mark.parametrize("kind", ["left alone", "delayed", "two talkers", "wide", "noise"])
    def test_stereo_in_which_no_voice_cancels_is_averaged(self, kind, noise):
        left = np.tile(files.speech(4.0), 2)
        other = np.roll(left, 20_000)[::-1]
        right = {
            "left alone": 0 * left,
            "delayed": 0.8 * np.roll(left, 80),
            "two talkers": other,
            "wide": left - 0.8 * other,
            "noise": 3 * left.std() * noise,
        }[kind]
        left = left + 0.8 * other if kind == "wide" else left
        each = (0.2 * np.stack([left, right], 1)).astype(np.float32)
        found = decoded(files.wav_file(each, 16_000, "f32"))
        assert found.warnings == ()
        assert max_error(found.samples, each.mean(axis=1)) < 1e-6

    def test_only_where_they_cancel_each_other_out(self):
        """A voice on one channel is kept, and sound in phase is averaged."""
        left, right = files.speech(6.0), 0.5 * files.speech(6.0)[::-1]
        left[-48_000:] = right[-48_000:] = files.speech(3.0)
        right[-48_000:] *= -1
        found = decoded(files.wav_file(np.stack([left, right], 1), 16_000, "f32"))
        mean = ((left + right) / 2).astype(np.float32)
        assert max_error(found.samples[:32_000], mean[:32_000]) < 1e-6
        assert np.array_equal(np.abs(found.samples[-30_000:]), np.abs(left[-30_000:], dtype="f4"))
        assert len(found.warnings) == 1

    @given(st.floats(-0.5, 1.0), st.integers(2, 8))
    @settings(max_examples=20)
    def test_other_channels_are_averaged_as_before(self, share, channels):
        """All but one may be silent."""
        loud = files.speech(1.0)
        each = np.zeros((len(loud), channels), np.float32)
        each[:, 0], each[:, -1] = loud, share * loud
        found = decoded(files.wav_file(each, 16_000, "f32"))
        assert found.warnings == ()
        mean = np.zeros(len(loud), np.float32)
        for channel in range(channels):
            mean += np.float32(1 / channels) * each[:, channel]
        np.testing.assert_allclose(found.samples, mean, atol=1e-7)
