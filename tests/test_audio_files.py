"""The made audio files against Python's own reader of WAV, and the mutations' determinism."""

from __future__ import annotations

import io
import random
import wave

import numpy as np
import pytest

from tests.support.audio_files import SAMPLE_KINDS, chirp, mutated, pitch, raw_wav, tone, wav_file


@pytest.mark.parametrize("kind", ["u8", "s16", "s24", "s32"])
def test_integer_wav_files_hold_their_signal(kind):
    samples = np.stack([tone(8_000, 0.25, 440), tone(8_000, 0.25, 660)], axis=1)
    with wave.open(io.BytesIO(wav_file(samples, 8_000, kind))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8_000, 2, 2_000)
        width, data = file.getsampwidth(), file.readframes(2_000)
    assert 8 * width == SAMPLE_KINDS[kind][1]
    read = [data[place : place + width] for place in range(0, len(data), width)]
    if kind == "u8":
        values = np.array([each[0] - 128 for each in read])
    else:
        values = np.array([int.from_bytes(each, "little", signed=True) for each in read])
    expected = samples.ravel() * 2 ** (8 * width - 1)
    np.testing.assert_allclose(values, expected, atol=0.51)


def test_a_tone_has_its_pitch_and_a_chirp_rises():
    assert pitch(tone(16_000, 1.0, 700).astype(np.float32)) == pytest.approx(700, abs=1)
    rising = chirp(16_000, 1.0).astype(np.float32)
    assert pitch(rising[:4_000]) < pitch(rising[-4_000:])


def test_a_header_may_announce_more_than_there_is():
    data = raw_wav(b"\0" * 10, 8_000, size=2_000)
    assert len(data) == 44 + 10
    assert int.from_bytes(data[40:44], "little") == 2_000


def test_a_mutation_depends_on_its_generator_alone():
    source = wav_file(chirp(8_000, 0.1), 8_000)
    for number in range(30):
        one, two = (mutated(source, [source], random.Random(number)) for _ in range(2))
        assert one == two
