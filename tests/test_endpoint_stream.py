"""Requests beside each other: answers as of each alone, whatever runs beside, and nobody waits."""

import asyncio
import base64
import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from config import ModelSettings
from handler import EndpointHandler, TranscriptionEndpoint
from tests.helpers.recogniser_stand_ins import EndlessDiarizer, TurnsOfSeconds, resident
from tests.support.audio_files import conversation
from whosaid.answer.response import response
from whosaid.asr import Limits, Recogniser, Transcribed, Transcriber
from whosaid.asr.engine.batch import Batch
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK
from whosaid.asr.output.alignment import aligned_words
from whosaid.audio.decode import decoding_steps
from whosaid.diarization.diarizer import Capabilities, Diarization
from whosaid.endpoint import Decoded, Diarized, Endpoint, Finished, Workers
from whosaid.errors import ModelError
from whosaid.scheduling.shortest_first import QueuedAudio
from whosaid.scheduling.steps import give_way
from whosaid.transcript import SpeakerTurn

# Texts of the first are decoded again. `test_transcription.py` has more.
OPTIONS = [
    {"language": "de", "return_timestamps": "word"},
    {"language": "en", "num_beams": 3, "logprob_threshold": -1_000},
    {"assisted": None, "language": "en", "batch_size": 1, "logprob_threshold": -1_000},
    {"multilingual": True, "diarize": True, "num_speakers": 2, "logprob_threshold": -1_000},
]
ENGLISH = {"diarize": False, "language": "en"}


@pytest.fixture(scope="module")
def handler(whisper_folder, assistant_folder) -> EndpointHandler:
    """Asked for one thing at a time; in float32 no batch changes a number. Random models are never
    sure: each of their windows would be decoded again."""
    settings = ModelSettings(
        asr_model=str(whisper_folder), assistant_model=str(assistant_folder), dtype="float32"
    )
    made = EndpointHandler(settings=settings)
    made.endpoint.models.diarizer = TurnsOfSeconds()
    made.endpoint.recogniser.transcriber.fallback = None
    return made


@pytest.fixture(scope="module")
def alone(handler):
    """The handler's answer to a body, which is asked for once."""
    answer = cache(lambda body: handler(json.loads(body)))
    return lambda body: answer(json.dumps(body))


@pytest.fixture(scope="module")
def serving(handler):
    """Makes endpoints of the handler's models, with an engine of their own, as servers have it."""
    alone = handler.endpoint

    def make(**options) -> Endpoint:
        limits = Limits(shared=True)
        models = alone.recogniser.transcriber.models
        recogniser = Recogniser(partial(Transcriber, models, fallback=None, limits=limits), 1)
        cpu = torch.device("cpu")
        held = resident(recogniser, TurnsOfSeconds())
        workers = Workers(held, alone.limits, cpu, 1, **options)
        return stack.enter_context(closing(TranscriptionEndpoint(workers)))

    with ExitStack() as stack:
        yield make


@pytest.fixture(scope="module")
def shared(serving) -> Endpoint:
    return serving()


@pytest.fixture
def endpoint(shared) -> Iterator[Endpoint]:
    """The endpoint of all tests; each test leaves it unchanged."""
    yield shared
    assert settles(shared)


@pytest.fixture(scope="module")
def recording(wav):

    def make(seconds):
        return base64.b64encode(wav(conversation()[: seconds * 16_000])).decode()

    return make


class Gate:
    """Holds a diarizer that calls `hear` until `go_on`; `waits` is set by what queues behind."""

    def __init__(self, queue, monkeypatch):
        self.begun, self.waits, self.go_on = (threading.Event() for _ in range(3))
        submit = queue.submit

        def submitting(*arguments):
            if self.begun.is_set():
                self.waits.set()
            return submit(*arguments)

        monkeypatch.setattr(queue, "submit", submitting)

    def hear(self, _):
        self.begun.set()
        assert self.go_on.wait(60)


@pytest.fixture
def gate(endpoint, monkeypatch) -> Gate:
    return Gate(endpoint.workers.diarization, monkeypatch)


def parsed(endpoint, inputs, **parameters):
    return endpoint.parse({"inputs": inputs, "parameters": {"diarize": False, **parameters}})


def idle(endpoint) -> bool:
    scheduler = endpoint.recogniser.transcriber.engine.scheduler
    return endpoint.outstanding == scheduler.running == scheduler.waiting == 0


def settles(endpoint) -> bool:
    """The engine's thread drops what was cancelled between two of its steps."""
    ends = time.monotonic() + 60
    while not idle(endpoint) and time.monotonic() < ends:
        time.sleep(0.01)
    return idle(endpoint)


async def events_of(endpoint, request):
    return [event async for event in endpoint.stream(request)]


def test_requests_at_once_are_answered_as_one_by_one(handler, endpoint, recording, monkeypatch):
    """Some windows are decoded again."""
    for each in (handler.endpoint, endpoint):
        monkeypatch.setattr(each.recogniser.transcriber, "fallback", DEFAULT_FALLBACK)
    asked = [{"diarize": False, **options} for options in OPTIONS]
    bodies = [{"inputs": recording(2), "parameters": each} for each in asked]
    expected = [handler(body) for body in bodies]
    before = replace(endpoint.recogniser.counts)

    async def together():
        return await asyncio.gather(*(endpoint.answer(handler.parse(body)) for body in bodies))

    answers = asyncio.run(together())
    for body, answer, alone in zip(bodies, answers, expected, strict=True):
        assert response(answer, handler.parse(body).config) == alone
    assert idle(endpoint)
    after = endpoint.recogniser.counts
    assert after.rows - before.rows > after.steps - before.steps


def test_the_events_of_a_request(endpoint, recording):
    request = parsed(endpoint, recording(12), language="en", return_timestamps="word")
    events = asyncio.run(events_of(endpoint, request))
    assert events[0] == Decoded(12.0)
    (*progress, finished) = events[1:]
    assert isinstance(finished, Finished)
    assert all(isinstance(each, Transcribed) for each in progress)
    chunks = [chunk for each in progress for chunk in each.chunks]
    assert tuple(chunks) == finished.answer.transcript.chunks
    done = [each.done for each in progress]
    assert done == sorted(done)
    assert len(done) >= 4
    assert {each.total for each in progress} == {done[-1]}


class OnePerson:
    """Hears one voice; `heard` has the seconds of each recording, with which `hear` is called."""

    capabilities = Capabilities(hints=True, voices=True, same_voice=0.5)

    def __init__(self, hear=lambda seconds: None) -> None:
        self.heard, self.hear = [], hear

    def diarize(self, samples, hints, pause):
        seconds = round(len(samples) / 16_000)
        self.heard.append(seconds)
        self.hear(seconds)
        turns = (SpeakerTurn("SPEAKER_00", 0.0, len(samples) / 16_000),)
        return Diarization(turns, turns, hints, {"SPEAKER_00": np.ones(2)})

    def embed(self, samples, spans):
        return np.ones(2)


@pytest.fixture
def with_clips(endpoint, recording):
    """A request for a recording of some seconds, with clips of several people."""

    def make(seconds, *clips):
        people = enumerate(map(recording, clips))
        known = [{"name": f"person {place}", "reference": each} for place, each in people]
        inputs = recording(seconds)
        return parsed(endpoint, inputs, language="en", diarize=True, known_speakers=known)

    return make


def test_clips_are_embedded_before_the_audio_is_decoded(endpoint, with_clips, monkeypatch):
    order, threads = [], set()

    def decoding(what):
        def decode(*arguments):
            order.append((what, threading.current_thread().name.partition("_")[0]))
            return decoding_steps(*arguments)

        return decode

    def hear(seconds):
        order.append((seconds, None))
        threads.add(threading.current_thread())

    monkeypatch.setattr("whosaid.diarization.known_speakers.decoding_steps", decoding("clip"))
    monkeypatch.setattr("whosaid.endpoint.request_steps.decoding_steps", decoding("audio"))
    monkeypatch.setattr(endpoint.models, "diarizer", OnePerson(hear))
    answer = asyncio.run(endpoint.answer(with_clips(2, 4, 5)))
    clip, audio = (("clip", "preparation"), ("audio", "preparation"))
    assert order[:5] == [clip, (4, None), clip, (5, None), audio]
    assert threads.isdisjoint({threading.main_thread(), *threading.enumerate()})  # passing
    assert [each.name for each in answer.known_speakers] == ["person 0", "person 1"]
    assert any("sound alike" in warning for warning in answer.warnings)


async def test_others_go_between_two_clips(endpoint, with_clips, recording, gate, monkeypatch):
    """The other recording is longer than the clips."""
    monkeypatch.setattr(endpoint.models, "diarizer", OnePerson(gate.hear))

    enrols = asyncio.ensure_future(endpoint.answer(with_clips(2, 4, 5, 6)))
    assert await asyncio.to_thread(gate.begun.wait, 60)
    request = parsed(endpoint, recording(8), language="en", diarize=True)
    other = asyncio.ensure_future(endpoint.answer(request))
    assert await asyncio.to_thread(gate.waits.wait, 60)
    gate.go_on.set()
    await asyncio.gather(enrols, other)
    assert endpoint.diarizer.heard == [4, 8, 5, 6, 2]


def test_cancelled_request_embeds_no_further_clip(endpoint, with_clips, gate, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(endpoint.models, "diarizer", OnePerson(gate.hear))

    async def leave():
        task = asyncio.ensure_future(endpoint.answer(with_clips(2, 4, 5)))
        assert await asyncio.to_thread(gate.begun.wait, 60)
        task.cancel()
        await asyncio.wait([task])
        gate.go_on.set()

    asyncio.run(leave())
    endpoint.workers.diarization.compute(QueuedAudio(0.0), over.set).result(60)
    assert over.is_set()
    assert endpoint.diarizer.heard == [4]
    assert endpoint.held_audio_bytes == 0


class Text(str):
    """Text whose end can be watched."""


async def test_decoded_file_is_released(endpoint, recording, monkeypatch):
    """The file is freed before recognition and diarization."""
    inputs, held = Text(recording(3)), []
    upload = weakref.ref(inputs)

    def watch(_=None):
        gc.collect()
        held.append(upload() is not None)

    monkeypatch.setattr(endpoint.models, "diarizer", TurnsOfSeconds(watch))
    request = parsed(endpoint, inputs, language="en", diarize=True)
    size = len(inputs)
    del inputs

    async for event in endpoint.stream(request):
        if isinstance(event, Decoded):
            watch()
    assert held == [False, False]
    assert len(request.upload) == size


def test_silence_has_no_progress(endpoint, wav):
    silence = base64.b64encode(wav(np.zeros(16_000))).decode()
    request = parsed(endpoint, silence, diarize=True)
    _decoded, finished = asyncio.run(events_of(endpoint, request))
    assert finished.answer.transcript.chunks == ()


def test_a_request_that_fails_in_the_engine_fails_alone(alone, endpoint, recording, monkeypatch):
    """A step fails while a request with a prompt has rows (`test_recovery.py` has more)."""
    special_tokens = endpoint.recogniser.transcriber.models.special_tokens
    launch = Batch._launch

    def fail(batch):
        if any(special_tokens.start_of_previous in each.prompt for each in batch.rows):
            raise RuntimeError("poison")
        return launch(batch)

    monkeypatch.setattr(Batch, "_launch", fail)
    bodies = [{"inputs": recording(1 + n), "parameters": ENGLISH} for n in range(2)]
    good = [endpoint.parse(body) for body in bodies]
    bad = parsed(endpoint, recording(3), language="en", prompt="word303")

    async def together():
        answers = [endpoint.answer(each) for each in (good[0], bad, good[1])]
        return await asyncio.gather(*answers, return_exceptions=True)

    answers = asyncio.run(together())
    assert isinstance(answers.pop(1), ModelError)
    for body, request, answer in zip(bodies, good, answers, strict=True):
        assert response(answer, request.config) == alone(body)


async def test_a_reader_that_raises_fails_its_request_alone(endpoint, recording, monkeypatch):
    good = parsed(endpoint, recording(4), language="en")
    bad = parsed(endpoint, recording(4), language="de", return_timestamps="word")

    def fail(*given):
        if given[-1] == "de":
            raise ValueError("no path")
        return aligned_words(*given)

    monkeypatch.setattr("whosaid.asr.output.chunks.aligned_words", fail)

    both = map(endpoint.answer, (good, bad))
    answer, failed = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(failed, ModelError)
    assert "ValueError" in str(failed)
    assert answer.transcript.chunks


async def test_cancelled_request_frees_its_rows(endpoint, recording):
    before = endpoint.recogniser.counts.cancelled

    async with aclosing(endpoint.stream(parsed(endpoint, recording(9), language="en"))) as events:
        async for event in events:
            if isinstance(event, Transcribed):
                break
    assert (await endpoint.answer(parsed(endpoint, recording(3), language="en"))).transcript.chunks
    assert idle(endpoint)
    assert endpoint.recogniser.counts.cancelled == before + 1


async def test_events_tell_the_progress_of_diarization(endpoint, recording, monkeypatch):
    events, known = [], threading.Event()

    def hear(pause):
        pause(0.25)
        assert known.wait(60)

    monkeypatch.setattr(endpoint.models, "diarizer", TurnsOfSeconds(hear))
    monkeypatch.setattr("whosaid.endpoint.request_steps.REPORT_SECONDS", 0.01)

    async for event in endpoint.stream(parsed(endpoint, recording(3), language="en", diarize=True)):
        events.append(event)
        if isinstance(event, Diarized):
            known.set()
    assert [*dict.fromkeys(map(type, events))] == [Decoded, Transcribed, Diarized, Finished]
    assert {each.share for each in events if isinstance(each, Diarized)} == {0.25}


def test_a_cancelled_task_leaves_its_diarization(endpoint, recording, monkeypatch):
    diarizer = EndlessDiarizer()
    monkeypatch.setattr(endpoint.models, "diarizer", diarizer)

    async def cancel():
        request = parsed(endpoint, recording(3), language="en", diarize=True)
        task = asyncio.ensure_future(endpoint.answer(request))
        await asyncio.to_thread(diarizer.begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(diarizer.ended.wait, 60)

    asyncio.run(cancel())
    assert endpoint.outstanding == 0


async def test_cancelled_request_frees_its_queued_samples(endpoint, recording, gate, monkeypatch):
    """A recording is being diarized, and the queued one is cancelled."""
    freed = threading.Event()

    async def decoded(*arguments):
        audio = await decoding_steps(*arguments)
        if gate.begun.is_set():
            weakref.finalize(audio.samples, freed.set)
        return audio

    monkeypatch.setattr(endpoint.models, "diarizer", TurnsOfSeconds(gate.hear))
    monkeypatch.setattr("whosaid.endpoint.request_steps.decoding_steps", decoded)

    def is_freed():
        """Return whether it is freed once preparation is done and the task is collected."""
        for _ in range(300):
            gc.collect()
            if freed.wait(0.1):
                return True
        return False

    first, second = (parsed(endpoint, recording(s), language="en", diarize=True) for s in (3, 4))
    one = asyncio.ensure_future(endpoint.answer(first))
    assert await asyncio.to_thread(gate.begun.wait, 60)
    other = asyncio.ensure_future(endpoint.answer(second))
    assert await asyncio.to_thread(gate.waits.wait, 60)
    other.cancel()
    await asyncio.wait([other])
    del other
    assert await asyncio.to_thread(is_freed)
    assert not one.done()
    gate.go_on.set()
    assert (await one).segments


async def test_short_recording_is_diarized_before_long_one(endpoint, recording, gate, monkeypatch):
    """While one of ten seconds is being diarized, the shorter of two queued recordings is next."""
    monkeypatch.setattr(endpoint.models, "diarizer", OnePerson(gate.hear))
    submit, arrived = endpoint.workers.diarization.submit, asyncio.Queue()

    def submitting(*arguments):
        arrived.put_nowait(None)
        return submit(*arguments)

    monkeypatch.setattr(endpoint.workers.diarization, "submit", submitting)

    asked = []
    for seconds in (10, 8, 3):
        request = parsed(endpoint, recording(seconds), language="en", diarize=True)
        asked.append(asyncio.ensure_future(endpoint.answer(request)))
        await arrived.get()
        assert await asyncio.to_thread(gate.begun.wait, 60)
    gate.go_on.set()
    answers = await asyncio.gather(*asked)
    assert endpoint.diarizer.heard == [10, 3, 8]
    assert all(answer.segments for answer in answers)


async def test_short_recording_is_decoded_between_long_ones(endpoint, recording, wav, monkeypatch):
    """The recording arrives when the first of eight long silent ones has taken one step."""
    begun, go_on, steps = threading.Event(), threading.Event(), []
    inputs = {3: recording(3), 8: base64.b64encode(wav(np.zeros(8 * 16_000))).decode()}

    async def watched(data, *others):
        long, inner = len(data) > 7 * 32_000, decoding_steps(data, *others)
        try:
            while True:
                progress = inner.send(None)
                steps.append(long)
                begun.set()
                assert go_on.wait(60)
                await give_way(progress)
        except StopIteration as end:
            return end.value

    monkeypatch.setattr("whosaid.audio.decode.STEP_SECONDS", 1)
    monkeypatch.setattr("whosaid.endpoint.request_steps.decoding_steps", watched)

    longs = [parsed(endpoint, inputs[8], language="en") for _ in range(8)]
    long = [asyncio.ensure_future(endpoint.answer(each)) for each in longs]
    assert await asyncio.to_thread(begun.wait, 60)
    short = asyncio.ensure_future(endpoint.answer(parsed(endpoint, inputs[3], language="en")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go_on.set()
    answer, *_ = await asyncio.gather(short, *long)
    answer = answer
    assert round(answer.duration) == 3
    assert steps.count(True) >= 8 * 8
    before = steps[: len(steps) - steps[::-1].index(False)]
    # Its own steps, the one that ran, and one turn in eight of who came first.
    assert before.count(True) <= 1 + -(-before.count(False) // 7)


def test_audio_is_decoded_while_its_samples_have_room(alone, serving, recording, monkeypatch):
    """Six recordings where two have room: never are more alive, and the answers are right."""
    bodies = [recording(1), recording(2)]
    expected = [alone({"inputs": body, "parameters": ENGLISH}) for body in bodies] * 3
    bodies *= 3
    alive, most = weakref.WeakSet(), []

    async def counted(*arguments):
        audio = await decoding_steps(*arguments)
        alive.add(audio)
        most.append(sum(each.samples.nbytes for each in alive))
        return audio

    monkeypatch.setattr("whosaid.endpoint.request_steps.decoding_steps", counted)
    limit = 4 * 16_000 * (2 + 2 * 2) - 1  # less than one of 2 s and as much room again
    endpoint = serving(max_decoded_bytes=limit)

    async def together():
        requests = [parsed(endpoint, body, language="en") for body in bodies]
        return await asyncio.gather(*(endpoint.answer(each) for each in requests))

    answers = asyncio.run(together())
    config = parsed(endpoint, bodies[0], language="en").config
    assert [response(answer, config) for answer in answers] == expected
    assert len(most) == len(bodies)
    assert max(most) <= 4 * 16_000 * (2 + 2)
    assert max(most) > 4 * 16_000 * 2
    assert endpoint.held_audio_bytes == 0
