"""Windows in which speakers talk at once, their tracks, and the words of the tracks."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from benchmarks.voices.overlap import GivenTurns
from diarization_utils import attribute, seconds_spoken
from tests.support.audio_files import request_body
from tests.support.dialogue import Placed, compose
from tests.support.speech import Voice, draw_clip
from tests.test_live_speakers import between
from tests.test_session_speakers import SETTINGS, Told, say, session
from whosaid import overlap
from whosaid.asr import EngineJob
from whosaid.asr.checkpoint.conditioning import CLASSES, DICOW_CLASSES, Conditioning
from whosaid.asr.model.conditioning import ConditioningLayers
from whosaid.asr.recogniser import ignore
from whosaid.diarization.activity import SpeakerActivity
from whosaid.diarization.diarizer import Diarization
from whosaid.errors import ModelError
from whosaid.live.events import Completed, SegmentEvent, SpeakersFound
from whosaid.live.settings import AudioFormat
from whosaid.timebase import runs
from whosaid.transcript import Chunk, SpeakerTurn, Transcript, Unwritten, Word

RATE = 16_000
STEPS = 10  # a second; all drawn times are multiples


def spans(most):
    return st.tuples(st.integers(0, most - 1), st.integers(1, most)).map(
        lambda drawn: (drawn[0] / STEPS, (drawn[0] + drawn[1]) / STEPS)
    )


turns_of = st.lists(
    st.tuples(st.sampled_from("ABC"), spans(60)).map(
        lambda drawn: SpeakerTurn(drawn[0], *drawn[1])
    ),
    max_size=8,
)


def found_in(turns):
    """Return the diarization with these turns; of two that overlap, the first keeps the overlap."""
    exclusive, taken = [], 0.0
    for turn in sorted(turns, key=lambda turn: (turn.start, turn.end)):
        if turn.end > taken:
            exclusive.append(replace(turn, start=max(turn.start, taken)))
            taken = turn.end
    return Diarization(tuple(turns), tuple(exclusive))


def speaking(turns, seconds):
    """The speakers at each sample of a grid of one hundredth of a second."""
    moments = [(step + 0.5) / 100 for step in range(round(seconds * 100))]
    return [{turn.speaker for turn in turns if turn.start <= at < turn.end} for at in moments]


@given(turns_of, st.lists(spans(60), max_size=4))
def test_seconds_spoken_are_those_counted_on_a_grid(turns, asked):
    by_step = speaking(turns, 12)
    for (start, stop), *found in zip(asked, *seconds_spoken(asked, turns), strict=True):
        inside = by_step[round(start * 100) : round(stop * 100)]
        counted = [sum(len(each) >= least for each in inside) / 100 for least in (1, 2)]
        assert found == pytest.approx(counted)


def chunk(text, start, window, seconds=1.0, **more):
    """A chunk with a word a second."""
    words = tuple(
        Word(f" {word}", start + seconds * index, start + seconds * (index + 0.9))
        for index, word in enumerate(text.split())
    )
    said = "".join(word.text for word in words)
    return Chunk(said, start, words[-1].end, words=words, window_start=window, **more)


def decided(turns, activity=None):
    return Diarization(tuple(turns), tuple(turns), activity=activity)


def test_windows_have_the_share_of_their_speech_in_which_voices_overlap():
    chunks = [chunk("a b c", 0, 0), chunk("d e", 10, 10), chunk("f", 20, 20), chunk("g", 30, 30)]
    turns = [
        SpeakerTurn("A", 0, 10), SpeakerTurn("B", 8.5, 10),  # 1.5 of 10 s
        SpeakerTurn("A", 10, 20), SpeakerTurn("B", 17, 20),  # 3 of 10 s
        SpeakerTurn("A", 20, 30), SpeakerTurn("B", 29.8, 30),  # too little
        SpeakerTurn("A", 30, 35), SpeakerTurn("A", 32, 35),  # alone
    ]  # fmt: skip
    found = overlap.overlapped_windows(chunks, decided(turns), 40.0)
    assert found == pytest.approx({(0, 10): 0.15, (10, 20): 0.3})


def test_probabilities_choose_windows_that_turns_do_not():
    turns = [SpeakerTurn("A", 0, 6), SpeakerTurn("B", 6, 10)]
    a, b, several = np.zeros((3, 500), np.float32)
    a[:300], b[300:] = 1, 1
    b[200:300] = several[200:300] = 0.4  # 0.8 s
    unsure = SpeakerActivity({"A": a, "B": b}, several)
    assert overlap.overlapped_windows([chunk("a b", 0, 0)], decided(turns), 10.0) == {}
    found = overlap.overlapped_windows([chunk("a b", 0, 0)], decided(turns, unsure), 10.0)
    assert found == pytest.approx({(0, 10): 0.08})


@pytest.mark.parametrize(
    ("chunks", "turns", "expected"),
    [
        # A window that was decoded again belongs to the window around it.
        (
            [chunk("a b", 0, 0), chunk("c", 4, 3.5), chunk("d e", 6, 0), chunk("f", 12, 12)],
            [SpeakerTurn("A", 0, 12), SpeakerTurn("B", 3, 5)],
            (0, 12),
        ),
        # A window that follows is another, although 0.28 + 2.0 is 2.2800000000000002.
        (
            [Chunk("a", 0.28, 2.0 + 0.28, window_start=0.28), chunk("b", 2.28, 2.28)],
            [SpeakerTurn("A", 0, 15), SpeakerTurn("B", 7, 8)],
            (2.28, 15.0),
        ),
    ],
)  # fmt: skip
def test_overlapped_windows_last_to_the_next(chunks, turns, expected):
    assert [*overlap.overlapped_windows(chunks, decided(turns), 15.0)] == [expected]


@given(turns_of, spans(60))
def test_a_track_lacks_only_samples_in_which_only_others_speak(turns, window):
    samples = np.arange(1, 12 * RATE + 1, dtype=np.float32)
    by_step = speaking(turns, 12)
    inside = [turn for turn in turns if turn.start < window[1] and turn.end > window[0]]
    tracks, speakers = overlap.find_tracks([window], turns), {turn.speaker for turn in inside}
    assert {track.speaker for track in tracks} == (speakers if len(speakers) > 1 else set())
    for track in tracks:
        first, last = (round(each * 100) for each in window)
        heard = [not each or track.speaker in each for each in by_step[first:last]]
        expected = samples[first * 160 : last * 160] * np.repeat(heard, 160)
        np.testing.assert_array_equal(track.cut(samples), expected)
        np.testing.assert_array_equal(track.whole(samples), samples[first * 160 : last * 160])
        # Shares of 20 ms: silence, the speaker, others, and the speaker with others.
        who = track.speaker
        classes = [(who in each) + 2 * bool(each - {who}) for each in by_step[first:last]]
        shares = np.eye(4)[classes].reshape(-1, 2, 4)[:, 0]  # bounds are multiples of 0.1 s
        np.testing.assert_allclose(track.mask(SpeakerActivity.decided(turns)), shares, atol=1e-6)


def most_speech(active, steps):
    """The first of the longest spans with most speech, as in TS-ASR-Whisper's local_datasets.py."""
    active = [*active, *[False] * (steps - len(active))]
    sums = np.convolve(np.array(active, float), np.ones(steps), "valid").round()
    return int(sums.argmax()), sums.max()


@given(turns_of, spans(60), st.integers(1, 40))
def test_an_enrolment_is_where_its_speaker_speaks_most(turns, whole, steps):
    begin, end = (round(each * STEPS) for each in whole)
    by_step = speaking(turns, 12)[5::10][begin:end]
    for speaker in set().union(*by_step):
        start, alone = most_speech([each == {speaker} for each in by_step], steps)
        if not alone:
            start, _ = most_speech([speaker in each for each in by_step], steps)
        found = overlap.find_enrolment(speaker, turns, whole, steps / STEPS)
        window = (begin + start, min(begin + start + steps, end))
        assert found.window == pytest.approx(tuple(each / STEPS for each in window))
        inside = [turn for turn in turns if turn.start < found.stop and turn.end > found.start]
        assert [*found.turns] == inside


def part(whole, first, stop):
    """Cuts a chunk without tokens."""
    words = whole.words[first:stop]
    if not words or words == whole.words:
        return [whole] if words else []
    said = "".join(word.text for word in words)
    return [Chunk(said, words[0].start, words[-1].end, words=words, voice=whole.voice)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["i say yes", "and no"], "i say yes and no"),
        (["one two three four five", "one two three four five"], "one two three four five " * 2),
        (["so One two three", "four five six", "one two three four five six", "end"],
         "so One two three four five six end"),
        (["to the end of the day " * 3 + "we"], "to the end of the day we"),
        (["no " * 13], "no " * 6),
    ],
)  # fmt: skip
def test_six_words_that_a_text_repeats_are_written_once(texts, expected):
    chunks = tuple(chunk(text, 10.0 * at, 0.0) for at, text in enumerate(texts))
    found = overlap.without_loops(Transcript(chunks, "en"), part)
    assert "".join(each.text for each in found).split() == expected.split()


def test_the_tracks_replace_the_parts_of_their_passages_and_nothing_else():
    kept = chunk("before it", 0, 0), chunk("after it", 20, 20)
    chunks = (kept[0], chunk("one voice of two hears please", 9.5, 9), kept[1])
    plain = Transcript(chunks, "en", unwritten=(Unwritten(5, 6), Unwritten(12, 13)))
    turns = [SpeakerTurn("A", 10, 20), SpeakerTurn("B", 11, 13)]
    tracks = overlap.find_tracks([(10, 20)], turns)
    # Both tracks hold the word "yes": it stays where it is likelier. The transcript's "please" is
    # outside of the part, but the same one.
    a = chunk("so i say yes indeed well", 0.0, 0.0)
    b = chunk("yes please yes", 3.25, 0.0)
    likely = [Word(word.text, word.start, word.end, probability=0.9) for word in b.words]
    b = replace(b, words=tuple(likely))
    left_out = (Unwritten(3, 5),), (Unwritten(4, 6),)  # seconds of the tracks
    tracks_of = zip(tracks, (a, b), left_out, strict=True)
    texts = {track: Transcript((each,), "en", unwritten=spans) for track, each, spans in tracks_of}
    whole = overlap.replaced(plain, texts, {(10, 20): [(11, 14.9)]}, part)
    said = [(None, " one voice"), ("A", " i say"), ("B", " yes please"), ("A", " indeed")]
    assert [(each.voice, each.text) for each in whole.chunks[1:-1]] == said
    assert (whole.chunks[0], whole.chunks[-1]) == kept
    assert [word.start for word in whole.chunks[2].words] == [11.0, 12.0]
    assert whole.unwritten == (Unwritten(5, 6), Unwritten(13, 15))
    words = [word for each in attribute(whole.chunks, turns, turns) for word in each.words]
    told = "".join(f"{word.text}/{word.speaker}" for word in words[4:9])
    assert told == " i/A say/A yes/B please/B indeed/A"


def test_chunks_of_tracks_last_as_long_as_their_words():
    """Whisper closed a sentence of 1.6 s after another voice's 9 s."""
    tracks = overlap.find_tracks([(0, 20)], [SpeakerTurn("A", 1, 4), SpeakerTurn("B", 3, 12)])
    a = replace(chunk("heard him hard by", 1, 0), start=0.0, end=15.0)
    heard = (a,), (chunk("serve it in a dish", 4, 0),)
    texts = {track: Transcript(chunks, "en") for track, chunks in zip(tracks, heard, strict=True)}
    whole = overlap.replaced(Transcript((), "en"), texts, {(0, 20): [(0, 14)]}, part)
    assert [(each.start, each.end) for each in whole.chunks] == [(1, 4.9), (4, 8.9)]


@given(st.integers(0, 40), st.integers(-9, 9))
def test_a_word_at_an_edge_is_written_once(place, later):
    """A transcript and a track may time the same word on two sides of a part's edge."""
    start, again = 10 + place / 10, max(0, place + later) / 10
    plain = Transcript((chunk("edge", start, 10), chunk("after", 20, 20)), "en")
    tracks = overlap.find_tracks([(10, 15)], [SpeakerTurn("A", 10, 15), SpeakerTurn("B", 11, 13)])
    own = chunk("one", 2, 0), chunk("edge", again, 0)
    heard = own, (chunk("two", 2, 0),)
    texts = {track: Transcript(chunks, "en") for track, chunks in zip(tracks, heard, strict=True)}
    whole = overlap.replaced(plain, texts, {(10, 15): [(11, 14)]}, part)
    assert sorted(each.text for each in whole.chunks) == [" after", " edge", " one", " two"]


def test_words_of_tracks_lie_between_those_of_a_chunk():
    first, last = chunk("oh well", 8, 0), chunk("so yes", 16, 0)
    one = replace(first, text=first.text + last.text, end=last.end, words=first.words + last.words)
    tracks = overlap.find_tracks([(8, 20)], [SpeakerTurn("A", 8, 18), SpeakerTurn("B", 11, 13)])
    heard = (chunk("that could", 3, 0),), (chunk("no way", 3.2, 0),)
    texts = {track: Transcript(chunks, "en") for track, chunks in zip(tracks, heard, strict=True)}
    whole = overlap.replaced(Transcript((one,), "en"), texts, {(8, 20): [(10, 14)]}, part)
    assert [each.text for each in whole.chunks] == [" oh well", " that could", " no way", " so yes"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("no no stop", "no no go", "no no stop, go"), ("का", "की", "का, की"), ("$", "€", "$, €")],
)
def test_a_word_has_one_echo(first, second, expected):
    chunks = chunk(first, 1, 0, 0.2, voice="A"), chunk(second, 1, 0, 0.2, voice="B")
    found = overlap._without_echoes(chunks, part)
    assert ", ".join(each.text.strip() for each in found) == expected


several_of = st.lists(
    st.tuples(st.integers(1, 90), st.sampled_from([0.0, 0.3, 0.4, 1.0])), min_size=1
)


@given(several_of, st.integers(0, 3), st.integers(2, 9))
def test_passages_hold_all_overlap_of_half_a_second(drawn, begin, longest):
    several = np.repeat([each for _, each in drawn], [frames for frames, _ in drawn])
    several = several.astype(np.float32)
    activity = SpeakerActivity({"A": np.ones_like(several), "B": several}, several, float(begin))
    stop = activity.end
    found = overlap.overlapped_passages(activity, stop, longest)
    in_parts = np.zeros(len(several), bool)
    for (start, end), parts in found.items():
        assert begin <= start < end <= stop
        assert end - start <= longest + 1e-6
        for first, last in parts:
            assert start <= first < last <= end
            frames = slice(*(round((each - begin) * 50) for each in (first, last)))
            assert not in_parts[frames].any()
            in_parts[frames] = True
    for first, last in pairwise(sorted(each for passage in found for each in passage)):
        assert first <= last
    near = np.convolve(several > overlap.LIKELY, np.ones(51), "full")[25:][: len(several)] > 0.5
    enough = [span for span in runs(near) if several[slice(*span)].sum() >= 25]
    for start, end in enough:
        assert in_parts[start:end].all()
    for start, end in runs(in_parts):
        assert any(start <= first and last <= end for first, last in enough)


@pytest.fixture(scope="module")
def scene():
    """Anna speaks, and Bob begins before she ends."""
    generator = np.random.default_rng(21)  # a scene whose texts are the same in a little noise
    voices = {"Anna": Voice("espeak", "f2", "en-us", 50, 160)}
    voices["Bob"] = Voice("espeak", "Andy", "en-us", 50, 150)
    placed, start = [], 0.3
    for turn, name in enumerate(("Anna", "Anna", "Bob", "Bob")):
        clip = draw_clip(voices[name], generator)
        start -= 1.7 * (turn == 2)
        placed.append(Placed(clip, name, start, turn))
        start = placed[-1].end + 0.3
    return compose(placed, start + 0.5, 1e-3, generator)


def deaf_to_others(encoder):
    """The conditioning of an encoder whose frames of others alone are zero before each layer."""
    layers, width = len(encoder.layers), encoder.positions.shape[-1]
    heard = torch.ones(CLASSES, width)
    heard[DICOW_CLASSES.index("non_target")] = 0
    places = range(layers + 1)
    weights = {f"fddt.{place}.weight": heard for place in places}
    weights |= {f"fddt.{place}.bias": torch.zeros(CLASSES, width) for place in places}
    return ConditioningLayers(Conditioning(weights), layers, 1, torch.float32)


@pytest.fixture
def enrolments():
    """The enrolments of the tracks that follow a speaker."""
    return []


def with_capabilities(endpoint, patch, **changes):
    can = replace(endpoint.transcriber.capabilities, **changes)
    patch.setattr(endpoint.transcriber, "capabilities", can)


@pytest.fixture
def ask(demo_handler, demo_endpoint, monkeypatch, scene, wav, enrolments):
    """Asks for the scene with given turns, and counts the transcriptions that start."""
    transcriber, started = demo_endpoint.recogniser.transcriber, []
    start = transcriber.start

    async def counted(samples, options, mask=None, enrolment=None, **prior):
        started.append(options.language if mask is None else "conditioned")
        enrolments.extend([] if mask is None else [enrolment])
        if transcriber.engine.context.encoder.main.conditioning is None:
            mask = None
        return await start(samples, options, mask, **prior)

    monkeypatch.setattr(transcriber, "start", counted)

    def ask(turns, **parameters):
        given = GivenTurns(demo_endpoint.diarizer, found_in(turns))
        with monkeypatch.context() as patch:
            patch.setattr(demo_endpoint.models, "diarizer", given)
            started.clear()
            wanted = {"assisted": False, "return_timestamps": "word"} | parameters
            return demo_handler(request_body(wav(scene.samples), **wanted)), [*started]

    return ask


def wrong(answer, scene):
    """The word errors of each speaker."""
    return {
        name: Levenshtein.distance(
            [word.text.strip() for word in scene.words if word.speaker == name],
            [each["word"].strip() for each in answer["words"] if each["speaker"] == label],
        )
        for name, label in (("Anna", "SPEAKER_00"), ("Bob", "SPEAKER_01"))
    }


def test_words_of_two_speakers_at_once_are_written_for_both(ask, scene, demo_endpoint):
    answer, started = ask(scene.turns, output=["srt", "vtt", "rttm"])
    assert len(started) == 3
    assert started[1:] == [answer["language"]] * 2
    off, once = ask(scene.turns, overlap="off")
    assert len(once) == 1
    errors, errors_off = wrong(answer, scene), wrong(off, scene)
    assert errors["Bob"] < errors_off["Bob"]
    assert errors["Anna"] <= errors_off["Anna"]
    starts = [each["timestamp"][0] for each in answer["speakers"]]
    assert starts == sorted(starts)
    assert max(each["overlap"] for each in answer["words"])
    assert answer["text"].split() == [w for c in answer["chunks"] for w in c["text"].split()]


def test_audio_without_overlap_is_decoded_once(ask, scene):
    whole = [SpeakerTurn("X", 0.0, scene.duration)]
    on, started = ask(whole)
    assert len(started) == 1
    assert on == ask(whole, overlap="off")[0]


def test_a_given_text_is_aligned_once(ask, scene):
    _, started = ask(scene.turns, text=" ".join(word.text.strip() for word in scene.words))
    assert len(started) == 1


def test_a_conditioned_encoder_follows_each_speaker(ask, scene, demo_endpoint, monkeypatch):
    monkeypatch.setattr("whosaid.overlap.MUCH", 0.0)  # too much overlap to silence others
    off, _ = ask(scene.turns, overlap="off")
    assert ask(scene.turns)[0] == off
    with_capabilities(demo_endpoint, monkeypatch, conditioned=True)
    followed, started = ask(scene.turns)
    assert started == [None, "conditioned", "conditioned"]
    assert followed == off  # these models follow nobody, and two equal texts are one voice's


def test_a_conditioned_encoder_writes_two_texts(ask, scene, demo_endpoint, monkeypatch):
    """Weights that are zero where others alone speak let each row hear its own speaker."""
    encoder = demo_endpoint.transcriber.engine.context.encoder.main
    monkeypatch.setattr(encoder, "conditioning", deaf_to_others(encoder))
    with_capabilities(demo_endpoint, monkeypatch, conditioned=True)
    off, _ = ask(scene.turns, overlap="off")
    answer, started = ask(scene.turns)
    assert started == [None, "conditioned", "conditioned"]
    errors, errors_off = wrong(answer, scene), wrong(off, scene)
    assert all(errors[name] < errors_off[name] for name in errors)


def test_words_that_do_not_overlap_prove_nothing():
    plain = Transcript((chunk("one after the other", 0, 0),), "en")
    tracks = overlap.find_tracks([(0, 9)], [SpeakerTurn("A", 0, 9), SpeakerTurn("B", 0, 9)])
    a, b = chunk("one after", 0.0, 0.0), chunk("the other", 2.0, 0.0)
    apart = {track: Transcript((each,), "en") for track, each in zip(tracks, (a, b), strict=True)}
    whole = {(0, 9): [(0, 9)]}
    assert overlap.replaced(plain, apart, whole, part) is plain
    b = chunk("the other", 1.0, 0.0)
    at_once = {**apart, tracks[1]: Transcript((b,), "en")}
    found = overlap.replaced(plain, at_once, whole, part)
    assert [each.voice for each in found.chunks] == ["A", "B"]
    end = chunk("end", 3.0, 0.0, avg_logprob=-0.9)  # of an unlikely window
    at_once[tracks[1]] = Transcript((b, end), "en")
    assert overlap.replaced(plain, at_once, whole, part) == found
    at_once[tracks[1]] = Transcript((replace(b, compression_ratio=2.5), end), "en")
    assert overlap.replaced(plain, at_once, whole, part) is plain


class StreamedTurns(GivenTurns):
    """Returns the turns as the audio comes."""

    missing, clock = 8_000, 0.0

    @property
    def capabilities(self):
        return replace(self.diarizer.capabilities, streams=True)

    def stream(self):
        return self

    def push(self, samples, last=False, cancelled=None):
        begin, self.clock = self.clock, self.clock + len(samples) / RATE
        both = self.found.turns, self.found.exclusive
        found = [between(each, begin, self.clock) for each in both]
        self.clock = np.inf if last else self.clock
        return replace(found[0], exclusive=found[1].turns)


@pytest.fixture
def live(demo_endpoint, monkeypatch, scene):
    """Runs a session in which the scene is said twice, an item each time."""
    whole = scene.duration
    again = [replace(t, start=t.start + whole, end=t.end + whole) for t in scene.turns]

    async def run(kind, before_the_end):
        told = Told()
        async with session(demo_endpoint, told) as driver:
            await driver.change(SETTINGS, AudioFormat.PCM_16000)
            await say(driver, scene.samples)
            await driver.commit()
            await told.came[Completed].wait()
            await say(driver, scene.samples)
            if kind is StreamedTurns:
                await before_the_end(told)
            await driver.finish()
        return told

    async def nothing(told):
        """The session goes on to its end."""

    def live(kind, before_the_end=nothing):
        diarizer = kind(demo_endpoint.diarizer, found_in([*scene.turns, *again]))
        monkeypatch.setattr(demo_endpoint.models, "diarizer", diarizer)
        told = asyncio.run(run(kind, before_the_end))
        assert isinstance(told[-1], SpeakersFound)
        found = {each.item_id: [] for each in told if isinstance(each, Completed)}
        for each in told:
            if isinstance(each, SegmentEvent):
                found[each.item_id].append(each)
        return [*found.values()]

    return live


def assert_segments(found, answer, later=0.0):
    told = [(each["text"], each["speaker"]) for each in answer["speakers"]]
    assert [(each.text, each.speaker) for each in found] == told
    for each, other in zip(found, answer["speakers"], strict=True):
        times = [time + later for time in other["timestamp"]]
        assert [each.start, each.end] == pytest.approx(times, abs=0.05)


@pytest.mark.parametrize("kind", [GivenTurns, StreamedTurns])
def test_a_live_items_segments_are_the_files(kind, ask, live, scene):
    answer, _ = ask(scene.turns)

    async def named(told):
        """With a diarizer that streams, before the session ends."""
        await told.came[SegmentEvent].wait()

    first, second = live(kind, named)
    assert_segments(first, answer)
    assert_segments(second, answer, scene.duration)


@pytest.mark.parametrize("kind", [None, GivenTurns, StreamedTurns])
def test_each_speaker_enrols_once_in_all_samples_that_are_held(
    kind, ask, live, scene, demo_endpoint, monkeypatch, enrolments
):
    with_capabilities(demo_endpoint, monkeypatch, conditioned=True, enrols=True)
    if kind is None:
        ask(scene.turns)
    else:
        live(kind)
    # A session with a diarizer that streams holds one of its two items, another session both.
    tracks, held = (2, 1) if kind is None else (4, 2 if kind is GivenTurns else 1)
    assert len(enrolments) == tracks
    found = [*dict.fromkeys(enrolments)]
    assert len(found) == (4 if kind is StreamedTurns else 2)
    moves = [(later, each) for later in (0, scene.duration)[:held] for each in scene.turns]
    turns = [replace(each, start=each.start + later, end=each.end + later) for later, each in moves]
    samples = np.tile(scene.samples, held)
    speakers = [*dict.fromkeys(each.speaker for each in scene.turns)] * (len(found) // 2)
    for each, speaker in zip(found, speakers, strict=True):
        track = overlap.find_enrolment(speaker, turns, (0.0, held * scene.duration), 30.0)
        np.testing.assert_allclose(each.samples, track.whole(samples), atol=1e-4)
        expected = track.mask(SpeakerActivity.decided(turns))
        # A bound of a turn may be rounded to the next frame.
        assert (each.mask != expected).any(axis=1).sum() <= 2 * len(track.turns)


def test_failed_tracks_cost_a_session_no_text(ask, live, scene, demo_endpoint, monkeypatch):
    answer, _ = ask(scene.turns, overlap="off")
    recogniser, tracks = demo_endpoint.recogniser, []
    submit = recogniser.submit

    def fail(recognition):
        if recognition.live:
            return submit(recognition)
        tracks.append(EngineJob(recognition, ignore, recogniser.wake))
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, tracks[-1].result.set_exception, ModelError("broken"))
        return tracks[-1]

    monkeypatch.setattr(recogniser, "submit", fail)
    first, second = live(StreamedTurns)
    assert len(tracks) == 4
    assert all(job.cancelled for job in tracks)
    assert_segments(first, answer)
    assert second
