"""Builds the answer: assigns words to speakers, names the speakers and joins the channels.

A separate channel counts as one speaker, and word times alone show overlap between channels. If
diarization finds several speakers on a channel, their names begin with its name.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice

from config import InferenceConfig
from diarization_utils import (
    as_word,
    attribute,
    during,
    segment_of,
    segment_per_chunk,
    speaker_segments,
    with_names,
    with_voices,
)
from whosaid.answer.phrases import count_letters
from whosaid.answer.response import Answer, clamp_times, words_by_start
from whosaid.diarization.diarizer import Diarization, add_labels
from whosaid.diarization.known_speakers import KnownVoices, name_speakers
from whosaid.payload.named_text import GivenTurn
from whosaid.transcript import (
    Channel,
    Chunk,
    DecodeStats,
    SpeakerSegment,
    SpeakerTurn,
    Transcript,
    Word,
)

# Seconds; shorter pauses between words of a channel do not end a turn, as in most references.
MAX_PAUSE = 0.5

Rename = Callable[[str | None], str]


def attributed(
    duration: float,
    transcripts: Sequence[Transcript],
    diarizations: Sequence[Diarization | None],
    known: KnownVoices,
    config: InferenceConfig,
) -> Answer:
    """Return the answer for a recording of `duration` seconds. `transcripts` and `diarizations`
    (None if not wanted) have an entry for each separate channel, or one for mixed channels.
    """
    if given := config.given_turns:
        return _by_text(duration, transcripts[0], given)
    answers = [
        _channel_answer(duration, transcript, diarization, known, config)
        for transcript, diarization in zip(transcripts, diarizations, strict=True)
    ]
    answer = answers[0]
    if config.separate:
        names = [f"CHANNEL_{channel:02d}" for channel in range(len(answers))]
        answer = joined(answers, config.channel_names or names)
    if answer.turns is None:
        return answer
    return replace(answer, segments=_segments(answer.transcript.chunks, config))


def _by_text(duration: float, transcript: Transcript, given: Sequence[GivenTurn]) -> Answer:
    """Return the answer whose segments are the spoken words of the turns `given` by the client."""
    ends = [*accumulate(count_letters(turn.text) for turn in given)]
    unspoken = deque(transcript.unspoken)
    letters = spoken = 0  # so far
    owned: list[list[Word]] = [[] for _ in given]
    chunks = []
    for chunk in transcript.chunks:
        words = []
        for word in chunk.words or [as_word(chunk)]:
            while unspoken and unspoken[0].before == spoken:
                letters += sum(map(count_letters, unspoken.popleft().words))
            place = min(bisect_right(ends, letters), len(given) - 1)
            words.append(replace(word, speaker=given[place].speaker))
            owned[place].append(words[-1])
            letters += count_letters(word.text)
            spoken += 1
        chunks.append(replace(chunk, words=tuple(words)))
    segments = [segment_of(words) for words in owned if words]
    turns = [turn for each in segments if each.speaker for turn in _turns(each.words)]
    warnings = (*transcript.warnings, *transcript.unwritten_warning)
    return Answer(duration, replace(transcript, chunks=tuple(chunks)), segments, turns, warnings)


def _segments(chunks: Sequence[Chunk], config: InferenceConfig) -> list[SpeakerSegment]:
    segments = speaker_segments(chunks) if config.group_by_speaker else segment_per_chunk(chunks)
    if any(chunk.voice for chunk in chunks):
        segments = [replace(each, voice=each.speaker or "") for each in segments]
    return segments


def _channel_answer(
    duration: float,
    transcript: Transcript,
    diarization: Diarization | None,
    known: KnownVoices,
    config: InferenceConfig,
) -> Answer:
    """Return one channel's answer, without segments. Speakers are numbered by their first words in
    the response, and then voices without words. Known names replace the labels last.
    """
    labels: dict[str, str] = {}
    chunks: Sequence[Chunk] = transcript.chunks
    if diarization is not None:
        chunks = attribute(chunks, diarization.turns, diarization.exclusive)
        diarization = replace(diarization, turns=tuple(with_voices(diarization.turns, chunks)))
        shown = _in_order(clamp_times(chunks, duration)) if config.separate else chunks
        words = words_by_start(_segments(shown, config), duration)
        add_labels(labels, (word.speaker for word in words))
        add_labels(labels, (turn.speaker for turn in diarization.turns))
        diarization = diarization.renamed(labels)
    naming = name_speakers(diarization, known, config.known_speaker_threshold)
    turns, named = None, naming.diarization
    if named is not None:
        turns = named.turns
        matched = {each.label: each.name for each in naming.known_speakers if each.matched}
        names = {raw: matched.get(label, label) for raw, label in labels.items()}
        chunks = [
            replace(
                each,
                voice=names.get(each.voice or "", each.voice),
                words=with_names(each.words, names),
            )
            for each in chunks
        ]
        transcript = replace(transcript, chunks=tuple(chunks))
    warnings = transcript.warnings + transcript.unwritten_warning
    warnings += diarization.warnings if diarization else ()
    warnings += naming.warnings
    voices = named.answered if named else {}
    return Answer(duration, transcript, None, turns, warnings, naming.known_speakers, voices=voices)


def joined(answers: Sequence[Answer], names: Sequence[str]) -> Answer:
    """Join the answers of the channels `names` to one answer, without segments.

    Every word has a speaker; `overlap` marks it if another channel speaks during it. Chunks, and so
    the text, are sorted by their times, clamped as in the response. A warning begins with the
    channel's name unless all channels have it.
    """
    named = [
        _named(answer, channel, _speaker_names(answer, name))
        for channel, (answer, name) in enumerate(zip(answers, names, strict=True))
    ]
    chunks = _mark_overlap([answer.transcript.chunks for answer in named])
    transcripts = [answer.transcript for answer in answers]
    return Answer(
        answers[0].duration,
        _joined_transcript(transcripts, chunks),
        turns=sorted(
            chain.from_iterable(answer.turns or () for answer in named),
            key=lambda turn: (turn.start, turn.end),
        ),
        warnings=_joined_warnings(answers, names),
        known_speakers=tuple(
            max(each, key=lambda known: (known.matched, known.similarity or -1.0))
            for each in zip(*(answer.known_speakers for answer in named), strict=True)
        ),
        voices=dict(chain.from_iterable(answer.voices.items() for answer in named)),
        channels=tuple(
            Channel(name, each.language, each.language_probability)
            for name, each in zip(names, transcripts, strict=True)
        ),
    )


def _speaker_names(answer: Answer, channel: str) -> Rename:
    """Return a function from a channel's labels to names.

    A known speaker keeps the known name. The only speaker with words on the channel has the
    channel's name, and so has a word in no turn.
    """
    known = {each.name for each in answer.known_speakers}  # no name looks like a label
    voices = {turn.speaker for turn in answer.turns or ()}
    words = [word for chunk in answer.transcript.chunks for word in chunk.words]
    speaking = {word.speaker for word in words if word.speaker} or voices

    def rename(label: str | None) -> str:
        if label in known:
            return str(label)
        alone = len(speaking) < 2 and label not in voices - speaking
        return channel if label is None or alone else f"{channel}_{label}"

    return rename


def _named(answer: Answer, channel: int, rename: Rename) -> Answer:
    """Return the answer with speakers renamed, times clamped and `channel` on all items."""
    chunks = []
    for chunk in answer.transcript.chunks:
        every = chunk.words or (as_word(chunk),)
        words = tuple(replace(word, speaker=rename(word.speaker)) for word in every)
        chunks.append(replace(chunk, channel=channel, words=words))
    chunks = clamp_times(chunks, answer.duration)
    turns = answer.turns
    if turns is None:
        turns = _turns([word for chunk in chunks for word in chunk.words])
    return replace(
        answer,
        transcript=replace(answer.transcript, chunks=tuple(chunks)),
        turns=[replace(turn, speaker=rename(turn.speaker), channel=channel) for turn in turns],
        known_speakers=tuple(
            replace(each, label=each.label and rename(each.label)) for each in answer.known_speakers
        ),
        voices={rename(label): voice for label, voice in answer.voices.items()},
    )


def _turns(words: Sequence[Word]) -> list[SpeakerTurn]:
    turns: list[SpeakerTurn] = []
    for word in words:
        if turns and word.start - turns[-1].end <= MAX_PAUSE:
            turns[-1] = replace(turns[-1], end=max(turns[-1].end, word.end))
        else:
            turns.append(SpeakerTurn(str(word.speaker), word.start, word.end))
    return turns


def _mark_overlap(channels: Sequence[Sequence[Chunk]]) -> tuple[Chunk, ...]:
    """Return all channels' chunks in order of time; mark words that another channel overlaps."""
    words = [[word for chunk in chunks for word in chunk.words] for chunks in channels]
    marked: list[Chunk] = []
    for channel, chunks in enumerate(channels):
        others = chain.from_iterable(words[:channel] + words[channel + 1 :])
        pairs = zip(words[channel], during(words[channel], others), strict=True)
        own = iter([replace(word, overlap=word.overlap or over) for word, over in pairs])
        marked += (replace(chunk, words=tuple(islice(own, len(chunk.words)))) for chunk in chunks)
    return _in_order(marked)


def _in_order(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))


def _joined_transcript(transcripts: Sequence[Transcript], chunks: tuple[Chunk, ...]) -> Transcript:
    """Return the transcript of all channels, in the language of the channel with most speech."""
    most = max(transcripts, key=lambda each: sum(end - start for start, end in each.speech))
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
        speech=tuple(sorted(chain.from_iterable(each.speech for each in transcripts))),
        stats=stats,
        unwritten=tuple(sorted(unwritten, key=lambda each: (each.start, each.end))),
    )


def _joined_warnings(answers: Sequence[Answer], names: Sequence[str]) -> tuple[str, ...]:
    shared = set(answers[0].warnings).intersection(*(answer.warnings for answer in answers))
    warnings = [warning for warning in answers[0].warnings if warning in shared]
    for answer, name in zip(answers, names, strict=True):
        warnings += (f"{name}: {warning}" for warning in answer.warnings if warning not in shared)
    return tuple(warnings)
