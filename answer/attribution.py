"""Who said what: words get speakers, speakers names, and all channels become one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from answer.channels import joined
from answer.response import Answer
from config import InferenceConfig
from diarization.diarizer import Diarization
from diarization.known_speakers import KnownVoices, name_speakers
from diarization_utils import attribute, segment_per_chunk, speaker_segments
from transcript import Transcript


def attributed(
    duration: float,
    heard: Sequence[Transcript],
    found: Sequence[Diarization | None],
    known: KnownVoices,
    config: InferenceConfig,
) -> Answer:
    """The answer for a recording of `duration` seconds, of what was `heard` on each channel, and
    who was `found` to speak there (None where nobody looked), called by `known` names.
    """
    answers = [
        _channel_answer(duration, transcript, diarization, known, config.known_speaker_threshold)
        for transcript, diarization in zip(heard, found, strict=True)
    ]
    answer = answers[0]
    if config.separate:
        names = [f"CHANNEL_{channel:02d}" for channel in range(len(answers))]
        answer = joined(answers, config.channel_names or names)
    if answer.turns is None:
        return answer
    chunks = answer.transcript.chunks
    segments = speaker_segments(chunks) if config.group_by_speaker else segment_per_chunk(chunks)
    return replace(answer, segments=segments)


def _channel_answer(
    duration: float,
    transcript: Transcript,
    diarization: Diarization | None,
    known: KnownVoices,
    threshold: float | None,
) -> Answer:
    """What was found on one channel, without segments; words have speakers where these were looked
    for.
    """
    naming = name_speakers(diarization, known, threshold)
    turns, found = None, naming.diarization
    if found is not None:
        turns = found.turns
        chunks = attribute(transcript.chunks, found.turns, found.exclusive)
        transcript = replace(transcript, chunks=chunks)
    told = diarization.warnings if diarization else ()
    warnings = (*transcript.warnings, *told, *naming.warnings)
    return Answer(duration, transcript, None, turns, warnings, naming.known_speakers)
