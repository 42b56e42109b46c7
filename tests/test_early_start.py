"""Long recordings are transcribed while they are decoded: the same windows, the same answers."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config import DEMO_MODELS
from handler import TranscriptionEndpoint
from tests.helpers.calls import calls_of
from tests.helpers.nightly import some
from tests.helpers.recogniser_stand_ins import TurnsOfSeconds, resident
from tests.support.audio_files import conversation
from whosaid.answer.response import response
from whosaid.asr import Checkpoint, Limits, Recogniser, Transcriber, load_whisper
from whosaid.asr.frontend import vad
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import SampleSpan, Window
from whosaid.asr.listening import EarlyStart
from whosaid.asr.transcription import WindowDecoding
from whosaid.audio.decode import AudioLimits, decode_audio, decoding_steps
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Capabilities, Diarization, SpeakerHints
from whosaid.diarization.pyannote import PyannoteDiarizer
from whosaid.endpoint import Decoded, Endpoint, Finished, Workers
from whosaid.errors import AudioTooLong, InvalidAudio
from whosaid.scheduling.steps import run_steps
from whosaid.timebase import SAMPLE_RATE

LIMIT = 10 * SAMPLE_RATE
SPOKEN, LOUD, QUIET = 0.4, 0.03, 0.001  # levels of noise; the second is no speech, but loud
CPU = torch.device("cpu")


def sound(parts: list[tuple[float, float]]) -> np.ndarray:
    random = np.random.default_rng(0)
    noise = [random.normal(0, level, round(seconds * SAMPLE_RATE)) for level, seconds in parts]
    return np.concatenate(noise).astype(np.float32)


def speech_in(samples: np.ndarray, complete: bool) -> tuple[SampleSpan, ...]:
    """The spans of noise at SPOKEN; only whole steps of what is not complete."""
    padding = -len(samples) % vad.STEP if complete else 0
    steps = np.pad(samples, (0, padding))[: (len(samples) + padding) // vad.STEP * vad.STEP]
    peaks = np.abs(steps.reshape(-1, vad.STEP)).max(axis=1)
    return vad.find_speech((peaks > 0.5).astype(np.float32), len(samples), complete=complete)


def planned(samples: np.ndarray, complete: bool = True) -> Schedule:
    return Schedule(samples, speech_in(samples, complete), LIMIT)


def take(schedule: Schedule, count: int) -> list[Window]:
    """Decode `count` windows; some texts end early, or loop."""
    windows = schedule.pop_ready(count)
    for window in windows:
        kind, middle = window.start // 320 % 4, (window.start + 2 * window.stop) // 3
        if kind == 2:
            schedule.decode_again(window, middle, window.stop)
        schedule.complete(window, middle if kind else None, kind == 1, kind == 3)
    return windows


SOUND = st.sampled_from([SPOKEN, SPOKEN, LOUD, QUIET])
PARTS = st.lists(st.tuples(SOUND, st.floats(0.05, 14)), min_size=1, max_size=16)


@settings(max_examples=30)
@given(PARTS, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), max_size=5))
def test_growing_schedule_has_the_windows_of_a_whole_one(parts, growth):
    """Windows depend neither on when audio comes nor on how many are decoded meanwhile."""
    samples = sound(parts)
    whole = planned(samples)
    expected = {window: whole.samples(window) for window in take(whole, 999)}
    while windows := take(whole, 999):
        expected |= {window: whole.samples(window) for window in windows}
    grown = Schedule(np.zeros(0, np.float32), (), LIMIT)
    grown.await_more(len(samples))
    found: dict[Window, np.ndarray] = {}
    final = 0.0
    for share, count in [*sorted(growth), (1.0, 999)]:
        complete = count == 999
        part = samples if complete else samples[: round(share * len(samples))]
        grown.grow(planned(part, complete), complete)
        assert grown.final_until >= final
        for window in take(grown, count):
            assert window not in found
            found[window] = grown.samples(window)
        final = grown.final_until
    while windows := take(grown, 999):
        found |= {window: grown.samples(window) for window in windows}
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[window], expected[window]) for window in found)
    assert (grown.seconds, grown.total, grown.whole) == (whole.seconds, whole.total, True)


@settings(max_examples=30)
@given(PARTS, st.floats(0, 1))
def test_windows_begin_in_the_order_of_the_whole_recording(parts, share):
    samples = sound(parts)
    grown = Schedule(np.zeros(0, np.float32), (), LIMIT)
    grown.await_more(len(samples))
    grown.grow(planned(samples[: round(share * len(samples))], complete=False), complete=False)
    ready = planned(samples).ready()
    assert grown.ready() == ready[: len(grown.ready())]
    grown.grow(planned(samples), complete=True)
    assert grown.ready() == ready


@pytest.mark.parametrize("seed", [1, 3])
def test_speech_is_the_same_however_much_is_known_when(seed):
    """Real speech, at several levels, and with noise over it."""
    random = np.random.default_rng(seed)
    samples = conversation()[: 80 * SAMPLE_RATE] * np.float32(0.5**seed)
    samples += random.normal(0, 0.003 * seed, len(samples)).astype(np.float32)
    detector = vad.SpeechDetector()
    whole = detector(samples)
    search, before = vad.SpeechSearch(detector.network), ()
    for stop in sorted(random.integers(0, len(samples), 6).tolist()):
        for _ in search.blocks(samples[:stop], complete=False):
            pass
        found = vad.find_speech(search.probabilities, stop, vad.DEFAULT_OPTIONS, complete=False)
        assert found == whole[: len(found)]
        assert found[: len(before)] == before
        before = found
    for _ in search.blocks(samples, complete=True):
        pass
    at_once = vad.SpeechSearch(detector.network)
    for _ in at_once.blocks(samples, complete=True):
        pass
    np.testing.assert_array_equal(search.probabilities, at_once.probabilities)
    assert vad.find_speech(search.probabilities, len(samples)) == whole


@pytest.fixture(scope="module")
def speakers() -> tuple[PyannoteDiarizer, np.ndarray, Diarization]:
    """The demo's pipeline with batches of 4 windows; a conversation, and its diarization."""
    diarizer = load_diarizer(str(DEMO_MODELS / "diarization"), None, None, CPU)
    diarizer._batch_size = 4
    samples = conversation()[: 22 * SAMPLE_RATE]
    return diarizer, samples, diarizer.diarize(samples, SpeakerHints())


def activity(found: Diarization) -> dict[str, np.ndarray]:
    assert found.activity is not None
    return {**found.activity.speaking, "several": found.activity.several}


@settings(max_examples=4)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_early_windows_change_no_bit_of_a_diarization(speakers, shares):
    diarizer, samples, whole = speakers
    early = diarizer.start_early()
    for share in sorted(shares):
        early.hear(samples[: round(share * len(samples))])
    found = early.diarize(samples, SpeakerHints())
    assert found == whole
    for mine, theirs in ((found.voices, whole.voices), (activity(found), activity(whole))):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[each], theirs[each]) for each in mine)


def test_batches_heard_early_are_not_computed_again(speakers, monkeypatch):
    diarizer, samples, whole = speakers
    inferred = calls_of(monkeypatch, diarizer._pipeline._segmentation, "infer")
    assert diarizer.diarize(samples, SpeakerHints()) == whole
    batches, early = [len(each) for (each,) in inferred], diarizer.start_early()
    inferred.clear()
    early.hear(samples[: len(samples) // 2])
    assert 0 < len(inferred) < len(batches)
    assert early.diarize(samples, SpeakerHints()) == whole
    assert [len(each) for (each,) in inferred] == batches


def test_results_of_larger_batches_are_dropped_when_memory_runs_out(speakers, monkeypatch):
    diarizer, samples, _ = speakers
    embeddings, early = diarizer._pipeline.get_embeddings, diarizer.start_early()
    early.hear(samples[: len(samples) // 2])
    embed, sizes = embeddings.embed_batch, []

    def embed_two(file, windows, batch, *others):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return embed(file, windows, batch, *others)

    monkeypatch.setattr(embeddings, "embed_batch", embed_two)
    found = early.diarize(samples, SpeakerHints())
    again = sizes[1:]
    monkeypatch.setattr(diarizer, "_batch_size", 2)
    sizes.clear()
    assert diarizer.diarize(samples, SpeakerHints()) == found
    assert again == sizes


@pytest.fixture(scope="module")
def shared(whisper_folder) -> Iterator[Endpoint]:
    """In float32, so that no batch changes a number; nothing is decoded again."""
    models = load_whisper(Checkpoint(str(whisper_folder)), CPU, torch.float32)
    load = partial(Transcriber, models, fallback=None, limits=Limits(shared=True))
    models = resident(Recogniser(load, 1), TurnsOfSeconds())
    with closing(TranscriptionEndpoint(Workers(models, AudioLimits(600, 2**26), CPU, 1))) as made:
        yield made


@pytest.fixture
def endpoint(shared, monkeypatch) -> Iterator[Endpoint]:
    """Recordings of 30 s are long; each is planned and decoded in quarters."""
    monkeypatch.setattr("whosaid.asr.transcriber.LONG_SECONDS", 30)
    monkeypatch.setattr("whosaid.asr.listening.FIRST_SECONDS", 15)
    monkeypatch.setattr("whosaid.audio.decode.STEP_SECONDS", 15)
    yield shared
    scheduler, ends = shared.recogniser.transcriber.engine.scheduler, time.monotonic() + 60
    while (scheduler.busy or shared.recogniser._jobs) and time.monotonic() < ends:
        time.sleep(0.01)
    assert (scheduler.busy, shared.recogniser._jobs, shared.outstanding) == (False, [], 0)


@pytest.fixture(scope="module")
def long(wav) -> str:
    return base64.b64encode(wav(conversation()[: 36 * SAMPLE_RATE])).decode()


def asked(endpoint, inputs, **parameters):
    return endpoint.parse({"inputs": inputs, "parameters": {"diarize": False, **parameters}})


async def events_of(endpoint, request):
    return [event async for event in endpoint.stream(request)]


@pytest.mark.parametrize(
    "parameters",
    some(
        1,
        [
            {"return_timestamps": "word", "diarize": True, "batch_size": 4},
            {"language": "de"},
            {"multilingual": True},
        ],
    ),
)
def test_answers_are_those_of_whole_recordings(endpoint, long, monkeypatch, parameters):
    def answered():
        request = asked(endpoint, long, **parameters)
        events = asyncio.run(events_of(endpoint, request))
        assert isinstance(events[0], Decoded)
        assert isinstance(events[-1], Finished)
        chunks = [each for event in events[1:-1] for each in event.chunks]
        streamed = [(each.text, each.start, each.end) for each in chunks]
        return json.dumps(response(events[-1].answer, request.config)), streamed

    early = answered()
    monkeypatch.setattr("whosaid.asr.transcriber.LONG_SECONDS", 1e9)
    assert answered() == early


@pytest.mark.parametrize("silent", [False, True])
def test_the_first_text_comes_before_more_is_decoded(endpoint, long, wav, monkeypatch, silent):
    """If the beginning has no speech, the decoding of the rest waits for no text."""
    order, hear, read = [], EarlyStart.hear, WindowDecoding.read

    async def hearing(self, samples, complete=False):
        order.append("samples")
        return await hear(self, samples, complete)

    def reading(self, request, result):
        order.append("text")
        return read(self, request, result)

    monkeypatch.setattr(EarlyStart, "hear", hearing)
    monkeypatch.setattr(WindowDecoding, "read", reading)
    monkeypatch.setattr("whosaid.asr.listening.FIRST_SECONDS", 20)
    monkeypatch.setattr("whosaid.audio.decode.STEP_SECONDS", 10)
    if silent:
        speech = conversation()[: 20 * SAMPLE_RATE]
        silence = np.zeros(25 * SAMPLE_RATE, np.float32)
        long = base64.b64encode(wav(np.concatenate([silence, speech]))).decode()
    request = asked(endpoint, long, language="en")
    totals = [each.total for each in asyncio.run(events_of(endpoint, request))[1:-1]]
    assert order[:2] == ["samples", "samples" if silent else "text"]
    assert totals == sorted(totals, reverse=True)


def test_a_recording_that_is_too_long_is_not_transcribed(endpoint, long, monkeypatch):
    monkeypatch.setattr(endpoint.workers, "limits", AudioLimits(30, 2**26))
    monkeypatch.setattr(EarlyStart, "hear", lambda *_: pytest.fail("recognition has begun"))
    with pytest.raises(AudioTooLong):
        asyncio.run(events_of(endpoint, asked(endpoint, long, language="en")))


def test_a_recording_that_breaks_off_fails_its_request(endpoint, long, monkeypatch):
    async def broken(*arguments):
        await decoding_steps(*arguments)
        raise InvalidAudio("it breaks off")

    monkeypatch.setattr("whosaid.endpoint.request_steps.decoding_steps", broken)
    events = []

    async def stream():
        async for event in endpoint.stream(asked(endpoint, long, language="en")):
            events.append(event)

    with pytest.raises(InvalidAudio, match="it breaks off"):
        asyncio.run(stream())
    assert isinstance(events[0], Decoded)


async def test_a_client_that_leaves_ends_decoding_and_transcription(endpoint, long, monkeypatch):
    """The transcription waits for more of the recording, and nothing else is done."""
    hear, waits, go_on = EarlyStart.hear, threading.Event(), threading.Event()

    async def waiting(self, samples, complete=False):
        if complete:
            waits.set()
            assert go_on.wait(60)
        return await hear(self, samples, complete)

    monkeypatch.setattr(EarlyStart, "hear", waiting)

    client = asyncio.create_task(events_of(endpoint, asked(endpoint, long, language="en")))
    assert await asyncio.to_thread(waits.wait, 60)
    client.cancel()
    with suppress(asyncio.CancelledError):
        await client
    go_on.set()


def test_diarization_hears_a_recording_before_its_end(endpoint, long, monkeypatch):
    heard: list[np.ndarray] = []

    class Early(TurnsOfSeconds):
        capabilities = Capabilities(hints=True, voices=False, early=True)

        def start_early(self):
            return SimpleNamespace(hear=lambda given, _: heard.append(given), diarize=self.diarize)

        def diarize(self, samples, *others):
            assert 0 < len(heard[-1]) < len(samples)
            assert all(np.array_equal(each, samples[: len(each)]) for each in heard)
            return super().diarize(samples, *others)

    def turns():
        request = asked(endpoint, long, language="en", diarize=True)
        segments = asyncio.run(events_of(endpoint, request))[-1].answer.segments
        return [(each.speaker, each.text) for each in segments]

    expected = turns()
    monkeypatch.setattr(endpoint.models, "diarizer", Early())
    assert turns() == expected
    assert heard


def test_offset_at_the_start_prevents_an_early_start(endpoint, wav, monkeypatch):
    begun = []
    monkeypatch.setattr(EarlyStart, "hear", lambda *_: begun.append(1))
    samples = conversation()[: 36 * SAMPLE_RATE] * 0.5 + np.float32(0.2)
    inputs = base64.b64encode(wav(samples)).decode()
    asyncio.run(events_of(endpoint, asked(endpoint, inputs, language="en")))
    assert not begun


def test_offset_of_a_short_recording_uses_all_samples(wav):
    """The first minute has no offset."""
    samples = conversation()[: 80 * SAMPLE_RATE] * 0.2
    samples[60 * SAMPLE_RATE :] += np.float32(0.4)

    async def hear(*_):
        return False

    data, limits = wav(samples), AudioLimits(600, 2**26)
    found = run_steps(decoding_steps(data, SAMPLE_RATE, limits, False, hear))
    np.testing.assert_array_equal(found.samples, decode_audio(data, SAMPLE_RATE, limits).samples)
    assert abs(found.samples.mean()) < 1e-4
