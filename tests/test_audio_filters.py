"""Chains of filters: what comes out, and that nothing of them stays."""

import gc

import numpy as np
import pytest
from av.audio.frame import AudioFrame
from av.filter import Graph

from tests.support import audio_files as files
from whosaid.audio import libav
from whosaid.audio.decode import BUDGET
from whosaid.audio.filters import filtered
from whosaid.errors import AudioTooLong, InvalidAudio

RATE = 16_000
HALVED = ("volume", "0.5")


def frames_of(samples):
    for start in range(0, len(samples), 1_000):
        frame = AudioFrame.from_ndarray(samples[None, start : start + 1_000], "fltp", "mono")
        frame.sample_rate = RATE
        yield frame


@pytest.fixture
def count_graphs():
    """How many graphs there are, as long as nobody collects what holds itself."""
    gc.collect()
    gc.disable()
    yield lambda: sum(type(each) is Graph for each in gc.get_objects())
    gc.enable()


def test_every_sample_passes_in_blocks():
    samples = np.random.default_rng(0).standard_normal(40_500).astype(np.float32)
    blocks = list(filtered(frames_of(samples), HALVED))
    assert [block.samples for block in blocks] == [16_384, 16_384, 7_732]
    found = np.concatenate([block.to_ndarray()[0] for block in blocks])
    assert np.array_equal(found, samples / 2)
    assert list(filtered(iter(()), HALVED)) == []


def test_a_chain_is_freed_however_it_ends(count_graphs):
    samples = np.zeros(40_000, np.float32)
    list(filtered(frames_of(samples), HALVED))
    assert count_graphs() == 0
    abandoned = filtered(frames_of(samples), HALVED)
    next(abandoned)
    assert count_graphs() == 1
    abandoned.close()
    assert count_graphs() == 0
    with pytest.raises(ValueError, match="no filter"):
        list(filtered(frames_of(samples), ("no such filter", "")))
    assert count_graphs() == 0


def test_a_file_leaves_no_chain(count_graphs, monkeypatch):
    """A chain for each format, and refusals while decoding: too loud, too long."""
    wavs = [files.wav_file(files.tone(rate, 0.2, 300), rate) for rate in (44_100, 88_200)]
    links = [files.encoded(each, "a.aac") for each in wavs]
    monkeypatch.setattr(libav, "limit_processor_time", lambda seconds: None)

    def decode(data, max_seconds=60):
        return [*libav.decode(data, RATE, max_seconds, False, 1, BUDGET)]

    assert decode(b"".join(links) * 10)
    assert count_graphs() == 0
    loud = files.raw_wav(np.full(RATE, 1e5, "<f4").tobytes(), RATE, bits=32, form=files.FLOAT)
    with pytest.raises(InvalidAudio, match="out of range"):
        decode(loud)
    assert count_graphs() == 0
    with pytest.raises(AudioTooLong):
        decode(b"".join(links) * 10, 3.8)
    assert count_graphs() == 0
