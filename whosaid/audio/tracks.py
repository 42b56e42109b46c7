"""Decodes a conversation that has a file for each speaker, as recorders of calls write it.

The files may have different formats, rates and lengths. Each is mixed to one channel.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from whosaid.audio.decode import Audio, AudioLimits, decoding_steps
from whosaid.errors import AudioTooLong, InvalidAudio
from whosaid.timebase import SAMPLE_RATE


async def decode_tracks(files: Sequence[bytes], sampling_rate: int, limits: AudioLimits) -> Audio:
    """Decode each file to one channel of its own length, in the steps of `decoding_steps`.

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
    return Audio(channels, duration, tuple(warnings))


def begin_at(audio: Audio, starts: Sequence[float], limits: AudioLimits) -> Audio:
    """Return the audio with each channel (n,) begun at its second of `starts`, and silent before
    and after, until the last one ends. Raises AudioTooLong.
    """
    firsts = [round(start * SAMPLE_RATE) for start in starts]
    stops = [first + len(each) for first, each in zip(firsts, audio.channels, strict=True)]
    duration = max(stops) / SAMPLE_RATE
    if duration * len(starts) > limits.max_seconds:
        told = f"{len(starts)} channels of {duration:.1f} s are longer than the"
        raise AudioTooLong(f"{told} {limits.max_seconds:g} s that this endpoint accepts")
    channels = np.zeros((len(starts), max(stops)), np.float32)
    for channel, first, stop, each in zip(channels, firsts, stops, audio.channels, strict=True):
        channel[first:stop] = each
    return replace(audio, channels=tuple(channels), duration=duration)
