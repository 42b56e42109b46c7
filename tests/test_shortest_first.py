"""The next step and room for audio, with recordings that arrive and leave in any order."""

import threading
import weakref
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whosaid.scheduling.shortest_first import (
    BYTES_PER_SECOND,
    SHARE,
    QueuedAudio,
    ShortestFirst,
    in_one_step,
)
from whosaid.scheduling.steps import give_way

STEP = 30.0
TINY = 1e-6  # seconds: sums of shares are rounded


class Held:
    """A queue whose thread waits until `go`; `done` are the names of work, one for each step.

    `before` times a short recording has passed over a long one."""

    def __init__(self, before=0, **options) -> None:
        self.done, self.go = [], threading.Event()
        self.queue = ShortestFirst("test", **options)
        for _ in range(before):
            go = threading.Event()
            earlier = [self.occupy(go), self.submit("long", 600), self.submit("short", 5)]
            go.set()
            for each in earlier:
                each.result(60)
        self.done.clear()
        self.first = self.occupy(self.go)

    def occupy(self, go):
        running = threading.Event()
        occupied = in_one_step(lambda: (running.set(), go.wait(60)))
        result = self.queue.submit(QueuedAudio(0), occupied)
        assert running.wait(60)
        return result

    def submit(self, name, seconds, steps=1):
        return self.queue.submit(QueuedAudio(seconds), self.steps(name, steps))

    def submit_until_the_end(self):
        """Return once the queue accepts no more work."""
        with suppress(RuntimeError):
            while True:
                self.submit("late", 1)

    async def steps(self, name, count):
        for _ in range(count - 1):
            self.done.append(name)
            await give_way()
        self.done.append(name)

    def end(self):
        self.go.set()
        self.first.result(60)
        self.queue.shutdown()


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0, 7200), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(0, 9),
)
def test_the_first_runs_after_seven_turns_of_others(works, before):
    """Turns that passed others over `before` do not matter."""
    held = Held(before=before)
    asked = [held.submit(name, *work) for name, work in enumerate(works)]
    held.go.set()
    for each in asked:
        each.result(60)
    held.queue.shutdown()
    left = {name: steps for name, (_, steps) in enumerate(works)}
    passed_over = 0
    for name in held.done:
        shortest, first = min(left, key=lambda each: (works[each][0], each)), min(left)
        assert name == (first if passed_over == SHARE else shortest)
        passed_over = 0 if name == first else passed_over + 1
        left[name] -= 1
        left = {each: steps for each, steps in left.items() if steps}
    assert not left


def test_an_understated_length_is_believed_for_one_step():
    """Eight files announce a second and decode to an hour, before an honest one of a minute."""
    held = Held()

    async def lying(name):
        for step in range(120):
            held.done.append(name)
            await give_way((STEP * step, max(1.0, STEP * step)))

    for name in range(8):
        held.queue.submit(QueuedAudio(1.0), lying(name), decodes=True)
    honest = held.submit("honest", 60, 10)
    held.go.set()
    honest.result(60)
    before = held.done[: held.done.index("honest")]
    held.queue._pool.shutdown(cancel_futures=True)
    assert len(before) <= 8 * 4 + 8


class Client:
    """A recording of some seconds, which is decoded, held and let go."""

    def __init__(self, queue, seconds, said) -> None:
        self.context = queue.recording(said)
        self.recording = self.context.__enter__()
        self.result = queue.submit(self.recording, self.decode(seconds, said), decodes=True)

    async def decode(self, seconds, said):
        await give_way((0.0, said))
        decoded = 0.0
        while decoded < seconds:
            decoded = min(seconds, decoded + STEP)
            await give_way((decoded, max(said, decoded)))

    def leave(self):
        self.result.cancel()
        self.context.__exit__(None, None, None)


@settings(max_examples=60)
@given(
    recordings=st.lists(
        st.tuples(st.floats(1, 2000), st.sampled_from([0.0, 0.5, 1.0, 2.0])), min_size=1, max_size=9
    ),
    limit=st.floats(1, 4000),
    threads=st.integers(1, 3),
)
def test_audio_is_held_within_the_limit_and_one_recording(recordings, limit, threads):
    """Files may claim anything; decoded recordings leave some time later."""
    queue = ShortestFirst("test", threads, limit * BYTES_PER_SECOND)
    highest, put_back = [0.0], queue._put_back

    def watched(work, step):
        goes_on = put_back(work, step)
        highest.append(queue.held_bytes / BYTES_PER_SECOND)
        return goes_on

    queue._put_back = watched
    clients = [Client(queue, seconds, seconds * said) for seconds, said in recordings]
    left = list(clients)
    while left:
        wait([each.result for each in left], 60, FIRST_COMPLETED)
        done = [each for each in left if each.result.done()]
        assert done
        for each in done:
            each.result.result(0)
            each.leave()
            left.remove(each)
    queue.shutdown()
    assert queue.held_bytes == 0
    assert max(highest) <= limit + max(seconds for seconds, _ in recordings) + threads * STEP


def test_short_recordings_pass_long_ones_waiting_for_memory():
    queue = ShortestFirst("test", 1, 2048 * BYTES_PER_SECOND)
    long = [Client(queue, 460.0, 460.0) for _ in range(30)]
    for number in range(20):
        short = Client(queue, 5.0, 5.0)
        short.result.result(60)
        assert number or not long[-1].result.done()
        short.leave()
    for each in long:
        each.leave()
    queue.shutdown()


def test_results_and_exceptions_are_returned():
    queue = ShortestFirst("test")
    assert queue.submit(QueuedAudio(1), in_one_step(lambda: 5)).result(60) == 5
    with pytest.raises(ZeroDivisionError):
        queue.submit(QueuedAudio(1), in_one_step(lambda: 1 / 0)).result(60)
    assert queue.submit(QueuedAudio(1), in_one_step(lambda: 6)).result(60) == 6
    queue.shutdown()
    with pytest.raises(RuntimeError):
        queue.submit(QueuedAudio(1), in_one_step(lambda: 7))


def test_cancelled_work_never_begins():
    held = Held()
    cancelled, kept = held.submit("cancelled", 1), held.submit("kept", 2)
    assert cancelled.cancel()
    held.go.set()
    kept.result(60)
    assert held.done == ["kept"]
    held.end()
    held = Held()
    waiting = held.submit("never", 1)
    ending = threading.Thread(target=held.queue.shutdown)
    ending.start()
    held.submit_until_the_end()
    held.go.set()
    ending.join(60)
    with pytest.raises(CancelledError):
        waiting.result(60)
    assert held.done == []


def test_cancelled_steps_are_closed_and_free_their_memory():
    queue = ShortestFirst("test")
    closed, stepped, go_on = (threading.Event() for _ in range(3))

    async def steps():
        try:
            stepped.set()
            assert go_on.wait(60)
            await give_way((STEP, STEP))
        finally:
            closed.set()

    with queue.recording(1.0) as recording:
        result = queue.submit(recording, steps(), decodes=True)
        assert stepped.wait(60)
        result.cancel()
    go_on.set()
    assert closed.wait(60)
    queue.shutdown()
    assert queue.held_bytes == 0


def test_no_other_thread_closes_a_running_step():
    """CPython may crash if a coroutine is closed while another thread runs it."""

    class Coroutine:
        def __init__(self) -> None:
            self.began, self.go_on, self.closed = threading.Event(), threading.Event(), []

        def send(self, _):
            self.began.set()
            assert self.go_on.wait(60)

        def close(self):
            self.closed.append(threading.current_thread().name)

    queue, steps = ShortestFirst("test"), Coroutine()
    result = queue.submit(QueuedAudio(1.0), steps)
    assert steps.began.wait(60)
    assert result.cancel()
    assert steps.closed == []
    steps.go_on.set()
    queue.shutdown()
    assert steps.closed == ["test_0"]


def test_cancelled_work_is_forgotten_while_other_work_runs():
    held = Held()
    samples = [set(), set()]  # stand-ins, to which weak references are possible
    asked = [
        held.queue.submit(QueuedAudio(number), in_one_step(partial(id, each)))
        for number, each in enumerate(samples)
    ]
    cancelled, kept = map(weakref.ref, samples)
    del samples
    assert asked[0].cancel()
    assert cancelled() is None
    assert kept() is not None
    assert not held.first.done()
    held.end()
    assert kept() is None


class Batches:
    """A queue by a clock of its own, and a step of `long` seconds that lasts some batches; `done`
    has the name and the seconds of each computation, in order, and each time `then` is called."""

    def __init__(self, long: float, batches: list[float]) -> None:
        self.time, self.done, self.then = 0.0, [], lambda name: None
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.queue = ShortestFirst("test", clock=lambda: self.time)
        recording = QueuedAudio(long)
        between = self.queue.between_batches(recording)
        work = in_one_step(partial(self.run, batches, between))
        self.results = [self.queue.submit(recording, work)]
        assert self.begun.wait(60)

    def run(self, batches, between) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        between()
        for seconds in batches:
            self.compute("long", seconds)
            between()

    def compute(self, name, seconds) -> None:
        self.time += seconds
        self.done.append((name, seconds))
        self.then(name)

    def submit(self, name, length, *steps: float) -> None:
        self.results.append(self.queue.submit(QueuedAudio(length), self.steps(name, steps)))

    async def steps(self, name, steps):
        for seconds in steps[:-1]:
            self.compute(name, seconds)
            await give_way()
        self.compute(name, steps[-1])

    def end(self) -> list[str]:
        self.go_on.set()
        for each in self.results:
            each.result(60)
        self.queue.shutdown()
        return [name for name, _ in self.done]


def test_shorter_recordings_pass_within_a_long_step():
    batches = Batches(600, [1.0] * 3)
    batches.submit("like it", 400, 1.0)
    for _ in range(10):
        batches.submit("short", 5, 1.0)
    assert batches.end() == ["long", *["short"] * 7, "long", *["short"] * 3, "long", "like it"]


seconds = st.sampled_from([0.25, 0.5, 1.0, 8.0, 100.0])


@given(
    st.lists(seconds, max_size=30),
    st.lists(st.tuples(st.floats(1, 300), st.lists(seconds, min_size=1, max_size=3)), max_size=40),
)
def test_a_long_step_yields_seven_times_its_own_time(own, others):
    """A further step may run, whatever each takes; none waits while time is left."""
    batches = Batches(600, own)
    for length, steps in others:
        batches.submit("other", length, *steps)
    names = batches.end()
    (last,) = [place for place, name in enumerate(names) if name == "long"][-1:] or [0]
    given = {"long": 0.0, "other": 0.0}
    waiting, left = sum(len(steps) for _, steps in others), 0.0
    for name, took in batches.done[:last]:
        if name == "other":
            assert given["other"] < SHARE * given["long"] + TINY
            assert left > -TINY
            waiting, left = waiting - 1, left - took
        else:
            assert left <= TINY or not waiting
            left = min(left, 0.0) + SHARE * took
        given[name] += took


def test_a_long_step_yields_every_eighth_turn_to_the_first():
    """Any number of recordings may be shorter."""
    batches = Batches(600, [1.0] * 4)
    batches.submit("first", 60, 1.0)
    for _ in range(20):
        batches.submit("short", 5, 1.0)
    assert [each for each in batches.end() if each != "long"][:8].count("first") == 1


def test_a_long_step_yields_to_live_audio_after_each_batch():
    """Others' excess time before it does not count for it."""
    batches = Batches(600, [1.0] * 4)
    batches.submit("half", 300, 100.0, 100.0)

    def speak(name) -> None:
        if name == "half":
            for _ in range(2):
                batches.submit("live", 0.0, 1.0)

    batches.then = speak
    assert batches.end()[:6] == ["long", "half", "long", "live", "long", "live"]
