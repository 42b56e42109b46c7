"""Known speakers: enrols clips of people and names the speakers of a recording.

A clip is diarized like any recording, to find its speech and to detect a second voice. Exclusive
turns are used, because noise is often taken for a second voice beneath the first. The pipeline's
own model embeds the clip in one piece, with pauses and other voices masked. An unusable clip is
refused with its index in the request, because a name made from it would be silently wrong. A client
that asks for `voices` gets the speakers' embeddings, made in the same way, and may send them in
place of clips. Nothing else keeps embeddings longer than a request.

Speakers and names are matched one-to-one by the largest sum of similarities, in which a speaker who
stays unnamed counts as the threshold. Similarity is the cosine of embeddings, without calibration.
It depends on the model, the channel and the length of speech: see docs/benchmarks/voices.md.
"""

from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from whosaid.audio.decode import AudioLimits, decode_base64, decoding_steps
from whosaid.diarization.clustering import cosines
from whosaid.diarization.diarizer import Diarization, Diarizer, Pause, Span, SpeakerHints, Vector
from whosaid.errors import ClientError, InvalidReference
from whosaid.payload.parameters import ReferenceClip, Voice
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerMatch, SpeakerTurn

# Seconds of a clip: least speech, speech without a warning, and longest clip. At least 0.8 s are
# found in a second of speech.
MIN_SPEECH, GOOD_SPEECH, MAX_SECONDS = 0.8, 3.0, 30.0
MAX_SECOND_VOICE = 0.15  # largest share of another voice in a clip's speech
NOISY = 10.0  # decibels of speech above the rest of a clip; less gives a warning
MIN_REST = 0.2  # seconds without speech from which noise is measured

EMBEDDING = np.dtype("<f4")  # of a voice in an answer

MARGIN = 0.05  # least lead in similarity of a name over the next name
MIN_SECONDS_ALONE = 2.0
MAX_LABELS = 8  # in a warning
NO_THRESHOLD = (
    "known_speakers: no name was assigned, because this diarization model has no default threshold;"
    " set known_speaker_threshold"
)

Similarities = NDArray[np.float64]  # (speakers, names)
FindSpeech = Callable[[NDArray[np.float32]], Sequence[Span]]


@dataclass(frozen=True, slots=True)
class KnownVoices:
    """The names of a request, in its order, with the unit embeddings of each name's clips; none if
    no speakers are wanted. `same_voice` is the diarizer's capability.
    """

    vectors: Mapping[str, Sequence[Vector]] = field(default_factory=dict, repr=False, compare=False)
    warnings: tuple[str, ...] = ()
    same_voice: float | None = None


@dataclass(frozen=True, slots=True)
class Naming:
    """A diarization with names instead of labels, the result for each name, and warnings."""

    diarization: Diarization | None
    known_speakers: tuple[SpeakerMatch, ...] = ()
    warnings: tuple[str, ...] = ()


# Clips


class VoiceEnroller:
    """Embeds a request's clips one by one, within its `limits`: `decode`, then `enrol`. `diarizer`
    has `capabilities.voices`. `find_speech` returns spans in seconds.
    """

    def __init__(
        self, diarizer: Diarizer, find_speech: FindSpeech, limits: AudioLimits, sampling_rate: int
    ) -> None:
        self._diarizer, self._find_speech, self._rate = diarizer, find_speech, sampling_rate
        self._limits = replace(limits, max_seconds=min(MAX_SECONDS, limits.max_seconds))
        self._index = 0  # of the next clip
        self._vectors: dict[str, list[Vector]] = {}
        self._warnings: list[str] = []

    @property
    def known(self) -> KnownVoices:
        """The voices enrolled so far, in order, with clips grouped by name."""
        same_voice = self._diarizer.capabilities.same_voice
        pairs = [] if same_voice is None else alike(self._vectors, same_voice)
        warnings = [
            f"known_speakers: names {one} and {two} sound alike and may be mixed up"
            for one, two in pairs
        ]
        return KnownVoices(self._vectors, (*self._warnings, *warnings), same_voice)

    async def decode(self, clip: ReferenceClip) -> NDArray[np.float32]:
        """Decode the next clip to samples, (n,) at 16 kHz. Raises InvalidReference."""
        try:
            data = decode_base64(clip.reference, self._limits)
            audio = await decoding_steps(data, self._rate, self._limits)
        except ClientError as error:
            raise self._unusable(error.text.replace("inputs", "reference", 1)) from None
        self._limits = self._limits.less(len(data))
        return audio.samples

    def enrol(
        self, name: str, samples: NDArray[np.float32], pause: Pause = lambda *_: None
    ) -> None:
        """Add the voice in the samples of the decoded clip under `name`. Raises InvalidReference if
        the clip is unusable, and the errors of `Diarizer.diarize`.
        """
        found = self._diarizer.diarize(samples, SpeakerHints(), pause)
        spans = found.exclusive_spans(self._find_speech(samples))
        seconds = {label: sum(end - start for start, end in own) for label, own in spans.items()}
        if not seconds:
            raise self._unusable("no speech was found")
        label = max(seconds, key=lambda each: seconds[each])
        speech = sum(seconds.values())
        if speech - seconds[label] > MAX_SECOND_VOICE * speech:
            raise self._unusable("more than one person speaks")
        if seconds[label] < MIN_SPEECH:
            raise self._unusable(f"{seconds[label]:.1f} s of speech are too short")
        vector = unit(self._diarizer.embed(samples, spans[label]))
        if vector is None:
            raise self._unusable("no voice could be made out")
        clip = f"known_speakers[{self._index}]"
        if seconds[label] < GOOD_SPEECH:
            little = f"{seconds[label]:.1f} s of speech is little, {GOOD_SPEECH:g} s are better"
            self._warnings.append(f"{clip}: {little}")
        if _decibels(samples, spans[label]) < NOISY:
            self._warnings.append(f"{clip}: it is noisy")
        self._add(name, vector)

    def enrol_voice(self, name: str, voice: Voice) -> None:
        """Add an earlier answer's voice. Raises InvalidReference if it is another model's."""
        can = self._diarizer.capabilities
        if voice.model != can.voice_model:
            reason = f"is another than this endpoint's {can.voice_model}"
            raise self._unusable(reason, ".voice.model")
        try:
            values = np.frombuffer(b64decode(voice.embedding, validate=True), EMBEDDING)
        except ValueError:
            reason = "should be the base64 of float32 values"
            raise self._unusable(reason, ".voice.embedding") from None
        if len(values) != can.dimension:
            reason = f"has {len(values)} values, and those of this model {can.dimension}"
            raise self._unusable(reason, ".voice.embedding")
        vector = unit(values)
        if vector is None:
            raise self._unusable("should be finite, and not 0", ".voice.embedding")
        self._add(name, vector)

    def _add(self, name: str, vector: Vector) -> None:
        self._vectors.setdefault(name, []).append(vector)
        self._index += 1

    def _unusable(self, reason: str, field: str = "") -> InvalidReference:
        return InvalidReference(reason, f"known_speakers[{self._index}]{field}")


def speaker_voice(
    diarizer: Diarizer, samples: NDArray[np.float32], spans: Sequence[Span]
) -> Voice | None:
    """Return the voice of the speaker who speaks alone in `spans` of a recording, embedded as a
    clip is; None if the speaker says too little.

    The clip is the whole recording, `samples` (n,) at 16 kHz, with all else masked. If the
    recording is longer than a clip may be, the speaker's longest spans, joined, are the clip.
    Raises the errors of `Diarizer.embed`.
    """
    clip, own = clip_of(samples, spans)
    seconds = sum(end - start for start, end in own)
    vector = diarizer.embed(clip, own) if seconds >= MIN_SPEECH else ()
    if unit(vector) is None:
        return None
    embedding = b64encode(np.asarray(vector, EMBEDDING).tobytes()).decode()
    model = diarizer.capabilities.voice_model
    return Voice(model=model, seconds=round(seconds, 2), embedding=embedding)


def clip_of(
    samples: NDArray[np.float32], spans: Sequence[Span]
) -> tuple[NDArray[np.float32], Sequence[Span]]:
    """Return samples of at most MAX_SECONDS, and the spans in them in which the speaker speaks."""
    if len(samples) <= MAX_SECONDS * SAMPLE_RATE:
        return samples, spans
    left, chosen = MAX_SECONDS, []
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        end = min(end, start + left)
        left -= end - start
        chosen.append(samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)])
    clip = np.concatenate(chosen)
    return clip, [(0.0, len(clip) / SAMPLE_RATE)]


def _decibels(samples: NDArray[np.float32], spans: Sequence[Span]) -> float:
    """Return the level of `spans` above the rest in dB; infinite if the rest is short or silent."""
    speech = np.zeros(len(samples), bool)
    for start, end in spans:
        speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = True
    if np.count_nonzero(~speech) < MIN_REST * SAMPLE_RATE:
        return np.inf
    power, rest = (float(np.square(samples[part]).mean()) for part in (speech, ~speech))
    return 10 * float(np.log10(power / rest)) if power > 0 and rest > 0 else np.inf


def alike(known: Mapping[str, Sequence[Vector]], same_voice: float) -> list[tuple[int, int]]:
    """Return index pairs of names whose mean embeddings have at least the cosine `same_voice`."""
    means = [np.mean(vectors, 0) for vectors in known.values()]
    similar = cosines(means, means)
    return [pair for pair in combinations(range(len(means)), 2) if similar[pair] >= same_voice]


# Names


def name_speakers(
    diarization: Diarization | None, known: KnownVoices, threshold: float | None = None
) -> Naming:
    """Name the speakers whose voices match a known voice; the others keep their label. A match
    needs `threshold`, by default the embedding model's, if it has one, and MIN_SECONDS_ALONE of
    speech without others, and a usable embedding.
    """
    all_names = [*known.vectors]
    if diarization is None or not any(known.vectors.values()):
        return Naming(diarization, tuple(map(SpeakerMatch, all_names)), known.warnings)
    seconds = seconds_alone(diarization.turns)
    found = sorted(seconds, key=lambda label: -seconds[label])
    vectors = {
        label: vector
        for label in found
        if seconds[label] >= MIN_SECONDS_ALONE
        and (vector := unit(diarization.voices.get(label, ()))) is not None
    }
    labels = [*vectors]
    means = [np.mean(own, 0) for own in known.vectors.values()]
    similar = cosines([*vectors.values()], means)
    least = known.same_voice if threshold is None else threshold
    pairs = {} if least is None else assign(similar, least)
    names = {labels[row]: all_names[column] for row, column in pairs.items()}
    results = tuple(_results(all_names, labels, similar, pairs))
    warnings = known.warnings + _not_compared([each for each in found if each not in labels])
    if least is None:
        warnings += (NO_THRESHOLD,)
    return Naming(replace(diarization.renamed(names), voices={}), results, warnings)


def assign(similar: Similarities, threshold: float) -> dict[int, int]:
    """Match speakers (rows) and names (columns), at most one each.

    Staying unnamed is worth `threshold` to a speaker. A pair is accepted if it reaches `threshold`
    and its name leads the speaker's next name by MARGIN.
    """
    speakers, names = similar.shape
    nobody = np.full((speakers, speakers), threshold)
    rows, columns = linear_sum_assignment(np.hstack([similar, nobody]), maximize=True)
    pairs = {}
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if column < names and similar[row, column] >= threshold:
            others = np.delete(similar[row], column)
            if similar[row, column] - others.max(initial=-np.inf) >= MARGIN:
                pairs[row] = column
    return pairs


def unit(vector: Vector | Sequence[float]) -> Vector | None:
    """Return `vector` scaled to length 1; None if it is empty, zero or not finite."""
    row = np.asarray(vector, np.float64)
    norm = float(np.linalg.norm(row))
    return row / norm if np.isfinite(norm) and norm > 0 else None


def seconds_alone(turns: Sequence[SpeakerTurn]) -> dict[str, float]:
    """Return each speaker's seconds of speech without others, in the order of first turns."""
    seconds = dict.fromkeys((turn.speaker for turn in turns), 0.0)
    for label, spans in spans_alone(turns).items():
        seconds[label] = sum(end - start for start, end in spans)
    return seconds


def spans_alone(turns: Sequence[SpeakerTurn]) -> dict[str, list[Span]]:
    events = [(turn.start, 1, turn.speaker) for turn in turns]
    events += [(turn.end, -1, turn.speaker) for turn in turns]
    alone: defaultdict[str, list[Span]] = defaultdict(list)
    speaking: Counter[str] = Counter()
    before = 0.0
    for time, step, label in sorted(events):
        if len(speaking) == 1 and time > before:
            alone[next(iter(speaking))].append((before, time))
        speaking[label] += step
        if not speaking[label]:
            del speaking[label]
        before = time
    return alone


def _results(
    names: Sequence[str], labels: Sequence[str], similar: Similarities, pairs: Mapping[int, int]
) -> Iterator[SpeakerMatch]:
    """Yield each name with its speaker or, if unmatched, the most similar speaker."""
    rows = {column: row for row, column in pairs.items()}
    for column, name in enumerate(names):
        if not labels:
            yield SpeakerMatch(name)
            continue
        row = rows.get(column, int(np.argmax(similar[:, column])))
        yield SpeakerMatch(name, labels[row], float(similar[row, column]), column in rows)


def _not_compared(labels: Sequence[str]) -> tuple[str, ...]:
    if not labels:
        return ()
    shown = ", ".join(sorted(labels)[:MAX_LABELS])
    more = f" and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
    return (
        f"known_speakers: too little speech without others to compare {shown}{more}, "
        f"at least {MIN_SECONDS_ALONE:g} s are needed",
    )
