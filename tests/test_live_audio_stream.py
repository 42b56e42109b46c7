"""Live audio: any cutting of the bytes gives the samples that a file's decoder gives of them."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
from av.filter import Graph
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import audio_files as files
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.live.audio_stream import AudioStream
from whosaid.live.settings import AudioFormat
from whosaid.timebase import SAMPLE_RATE

WAV_FORMATS = {"audio/pcm": (1, 16), "audio/pcma": (6, 8), "audio/pcmu": (7, 8)}


def wav(data: bytes, audio_format: AudioFormat) -> bytes:
    """The bytes behind a header that names their format."""
    form, bits = WAV_FORMATS[audio_format.value[0]]
    return files.raw_wav(data, audio_format.rate, bits=bits, form=form)


def noise(audio_format: AudioFormat, count: int) -> bytes:
    return np.random.default_rng(count).bytes(count * audio_format.bytes_per_sample)


def pushed(audio_format: AudioFormat, data: bytes, cuts: list[int]) -> np.ndarray:
    """The samples of `data`, which comes in pieces cut at these places."""
    stream = AudioStream(audio_format)
    places = [0, *sorted(cuts), len(data)]
    pieces = [stream.push(data[start:stop]) for start, stop in pairwise(places)]
    return np.concatenate([*pieces, stream.flush()])


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_samples_are_those_of_the_same_audio_in_a_file(audio_format):
    """Every byte and every pair of neighbours among them; bit for bit."""
    data = bytes(range(256)) * 40
    # 12 * 441 samples at any of the rates are a whole number of samples at 16 kHz.
    data += noise(audio_format, 5 * 12 * 441 - len(data) // audio_format.bytes_per_sample)
    of_file = decode_audio(wav(data, audio_format), SAMPLE_RATE, AudioLimits(60, 2**20)).samples
    assert len(of_file) == -(-len(data) * SAMPLE_RATE // audio_format.bytes_per_second)
    np.testing.assert_array_equal(pushed(audio_format, data, []), of_file)


@settings(max_examples=40)
@given(st.sampled_from(AudioFormat), st.integers(0, 700), st.data())
def test_cuts_between_bytes_change_no_sample(audio_format, count, data):
    """Bit-equal, even with cuts inside samples; no sample is lost or invented."""
    heard = noise(audio_format, count)
    cuts = data.draw(st.lists(st.integers(0, len(heard)), max_size=30))
    found = pushed(audio_format, heard, cuts)
    assert len(found) == -(-count * SAMPLE_RATE // audio_format.rate)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, pushed(audio_format, heard, []))


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_samples_come_within_four_milliseconds(audio_format):
    stream = AudioStream(audio_format)
    heard = given_back = 0
    for piece in range(1, 200):
        heard += piece
        given_back += len(stream.push(noise(audio_format, piece)))
        lasts = heard * SAMPLE_RATE / audio_format.rate
        assert lasts - 0.004 * SAMPLE_RATE <= given_back <= lasts + 1


@settings(max_examples=20)
@given(st.sampled_from(AudioFormat), st.lists(st.integers(0, 800), max_size=20))
def test_time_goes_on_after_a_flush(audio_format, sizes):
    """After any number of flushes: fractions of samples do not add up to a drift."""
    stream, heard, given_back = AudioStream(audio_format), 0, 0
    for size in sizes:
        heard += size
        given_back += len(stream.push(bytes(size))) + len(stream.flush())
        count = heard // audio_format.bytes_per_sample
        assert given_back == -(-count * SAMPLE_RATE // audio_format.rate)
        assert len(stream.flush()) == 0


@settings(max_examples=20)
@given(st.lists(st.integers(0, 801), max_size=20))
def test_flushes_between_bytes_change_no_sample(cuts):
    heard, stream = noise(AudioFormat.PCM_16000, 400), AudioStream(AudioFormat.PCM_16000)
    places = [0, *sorted(cuts), len(heard)]
    pieces = [[stream.push(heard[a:b]), stream.flush()] for a, b in pairwise(places)]
    found = np.concatenate([each for pair in pieces for each in pair])
    np.testing.assert_array_equal(found, pushed(AudioFormat.PCM_16000, heard, []))


def test_a_flushed_stream_leaves_nothing_behind(monkeypatch):
    """Python's garbage collector gets no work either."""
    made = weakref.WeakSet()

    def make():
        graph = Graph()
        made.add(graph)
        return graph

    monkeypatch.setattr("whosaid.audio.filters.Graph", make)
    gc.disable()
    try:
        stream = AudioStream(AudioFormat.PCM_24000)
        for _ in range(3):
            stream.push(bytes(4_800))
            assert len(made) == 1
            stream.flush()
            assert len(made) == 0
    finally:
        gc.enable()
