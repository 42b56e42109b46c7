"""Decodes a conversation that has a file for each speaker, as recorders of calls write it.

The files may have different formats, rates and lengths. Each is mixed to one channel, and the
channels of all begin together, or at `starts`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from whosaid.audio.decode import Audio, AudioLimits, decoding_steps
from whosaid.errors import AudioTooLong, InvalidAudio
from whosaid.timebase import SAMPLE_RATE


async def decode_tracks(files: Sequence[bytes], sampling_rate: int, limits: AudioLimits) -> Audio:
    """Decode each file to one channel, in the steps of `decoding_steps`; later ends are silent.

    `limits` hold for all files together. Raises InvalidAudio, AudioTooLong.
    """
    tracks: list[Audio] = []
    for number, data in enumerate(files, 1):
        held = sum(track.duration for track in tracks)
        left = replace(limits, max_seconds=limits.max_seconds - held)
        try:
            tracks.append(await decoding_steps(data, sampling_rate, left, held=held))
        except AudioTooLong as error:
            raise AudioTooLong(f"file {number}: {error.reason}, besides the other files") from error
        except InvalidAudio as error:
            raise InvalidAudio(f"file {number}: {error.reason}") from error
    channels = tuple(track.samples for track in tracks)
    duration = max(track.duration for track in tracks)
    warnings = (
        f"file {number}: {warning}"
        for number, track in enumerate(tracks, 1)
        for warning in track.warnings
    )
    audio = Audio(channels, duration, tuple(warnings))
    return begin_at(audio, [0.0] * len(channels), limits)


def begin_at(audio: Audio, starts: Sequence[float], limits: AudioLimits) -> Audio:
    """Return the audio with each channel (n,) begun at its second of `starts`, and silent before
    and after. Raises AudioTooLong.
    """
    duration = audio.duration + max(starts)
    if duration * len(starts) > limits.max_seconds:
        told = f"{len(starts)} channels of {duration:.1f} s are longer than the"
        raise AudioTooLong(f"{told} {limits.max_seconds:g} s that this endpoint accepts")
    samples = max(map(len, audio.channels)) + round(max(starts) * SAMPLE_RATE)
    channels = np.zeros((len(starts), samples), np.float32)
    for channel, start, each in zip(channels, starts, audio.channels, strict=True):
        first = round(start * SAMPLE_RATE)
        channel[first : first + len(each)] = each
    return replace(audio, channels=tuple(channels), duration=duration)
