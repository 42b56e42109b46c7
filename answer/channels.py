"""Channels that were heard apart, as one answer.

A channel is its speaker, so that nobody has to tell voices apart, and who talks over whom follows
from the times of their words alone. Where diarization has found several speakers on a channel each
is called after it, and who was recognised by name has that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice

from answer.response import Answer, clamp_times
from diarization_utils import as_word, during
from transcript import (
    Channel,
    Chunk,
    DecodeStats,
    KnownSpeaker,
    SpeakerTurn,
    Transcript,
    Word,
)

# Seconds: words of a channel with shorter pauses are one turn, as in most references.
MAX_PAUSE = 0.5

Name = Callable[[str | None], str]


def joined(answers: Sequence[Answer], names: Sequence[str]) -> Answer:
    """The answers for all channels, which have these `names`, as one without segments.

    Words have their speakers, and are marked where another channel speaks. Chunks are in order of
    the times that the answer tells, and so is the text. Warnings of single channels begin with
    their names.
    """
    named = [
        _named(answer, place, _speaker_names(answer, name))
        for place, (answer, name) in enumerate(zip(answers, names, strict=True))
    ]
    chunks = _mark_overlap([answer.transcript.chunks for answer in named])
    transcripts = [answer.transcript for answer in answers]
    return Answer(
        answers[0].duration,
        _transcript(transcripts, chunks),
        turns=sorted(
            chain.from_iterable(answer.turns or () for answer in named),
            key=lambda turn: (turn.start, turn.end),
        ),
        warnings=_warnings(answers, names),
        known_speakers=_known_speakers([answer.known_speakers for answer in named]),
        channels=tuple(
            Channel(name, each.language, each.language_probability)
            for name, each in zip(names, transcripts, strict=True)
        ),
    )


def _speaker_names(answer: Answer, channel: str) -> Name:
    """What the speakers of a channel are called: who is alone there, and who is in no turn, has its
    name.
    """
    known = {each.name for each in answer.known_speakers if each.matched}
    labels = {turn.speaker for turn in answer.turns or ()}

    def name(label: str | None) -> str:
        if label in known:
            return str(label)
        return channel if label is None or len(labels) < 2 else f"{channel}_{label}"

    return name


def _named(answer: Answer, channel: int, name: Name) -> Answer:
    chunks = tuple(
        clamp_times(
            [
                replace(
                    chunk,
                    channel=channel,
                    words=tuple(
                        replace(word, speaker=name(word.speaker))
                        for word in chunk.words or [as_word(chunk)]
                    ),
                )
                for chunk in answer.transcript.chunks
            ],
            answer.duration,
        )
    )
    turns = answer.turns
    if turns is None:
        turns = _turns([word for chunk in chunks for word in chunk.words])
    return replace(
        answer,
        transcript=replace(answer.transcript, chunks=chunks),
        turns=[replace(turn, speaker=name(turn.speaker), channel=channel) for turn in turns],
        known_speakers=tuple(
            replace(each, label=each.label and name(each.label)) for each in answer.known_speakers
        ),
    )


def _turns(words: Sequence[Word]) -> list[SpeakerTurn]:
    """When the speaker of all `words` speaks."""
    turns: list[SpeakerTurn] = []
    for word in words:
        if turns and word.start - turns[-1].end <= MAX_PAUSE:
            turns[-1] = replace(turns[-1], end=max(turns[-1].end, word.end))
        else:
            turns.append(SpeakerTurn(str(word.speaker), word.start, word.end))
    return turns


def _mark_overlap(channels: Sequence[Sequence[Chunk]]) -> tuple[Chunk, ...]:
    """The chunks of all channels in order of time, with words marked during which another channel
    speaks.
    """
    words = [[word for chunk in chunks for word in chunk.words] for chunks in channels]
    marked: list[Chunk] = []
    for place, chunks in enumerate(channels):
        others = chain.from_iterable(words[:place] + words[place + 1 :])
        pairs = zip(words[place], during(words[place], others), strict=True)
        own = iter([replace(word, overlap=word.overlap or over) for word, over in pairs])
        marked += (replace(chunk, words=tuple(islice(own, len(chunk.words)))) for chunk in chunks)
    return tuple(sorted(marked, key=lambda chunk: (chunk.start, chunk.end)))


def _transcript(transcripts: Sequence[Transcript], chunks: tuple[Chunk, ...]) -> Transcript:
    """What all channels say, in the language of the one that says most."""
    most = max(transcripts, key=lambda each: sum(end - start for start, end in each.speech))
    speech = sorted(chain.from_iterable(each.speech for each in transcripts))
    stats = DecodeStats()
    for each in transcripts:
        stats.add(each.stats)
    unwritten = [
        replace(each, channel=channel)
        for channel, transcript in enumerate(transcripts)
        for each in transcript.unwritten
    ]
    return replace(
        most,
        chunks=chunks,
        warnings=(),
        speech=tuple(speech),
        stats=stats,
        unwritten=tuple(sorted(unwritten, key=lambda each: (each.start, each.end))),
    )


def _known_speakers(channels: Sequence[Sequence[KnownSpeaker]]) -> tuple[KnownSpeaker, ...]:
    """Of each name what is told on the channel where it fits best."""
    return tuple(
        max(each, key=lambda known: (known.matched, known.similarity or -1.0))
        for each in zip(*channels, strict=True)
    )


def _warnings(answers: Sequence[Answer], names: Sequence[str]) -> tuple[str, ...]:
    """Every warning once; one that not all channels have begins with a channel's name."""
    shared = set(answers[0].warnings).intersection(*(answer.warnings for answer in answers))
    warnings = [warning for warning in answers[0].warnings if warning in shared]
    for answer, name in zip(answers, names, strict=True):
        warnings += (f"{name}: {warning}" for warning in answer.warnings if warning not in shared)
    return tuple(warnings)
