"""A session's account of its requests, over an engine that does as it is told."""

from __future__ import annotations

import numpy as np
import pytest

from whosaid.asr.engine.engine import Session
from whosaid.asr.engine.request import DecodeOptions, DecodeResult, Request

RESULT = DecodeResult((1,), 0.0, (-0.1,), 0.0)


class Recorder:
    """Finishes at each step the requests it is told to, for whichever session."""

    def __init__(self):
        self.added, self.cancelled, self.steps = [], [], 0
        self.to_finish, self.sessions = [], {}

    def add(self, session, requests):
        self.added += requests
        self.sessions |= dict.fromkeys(requests, session)

    def step(self):
        self.steps += 1
        for request in self.to_finish:
            self.sessions[request].finished.append((request, RESULT))
        self.to_finish = []

    def cancel(self, session):
        self.cancelled.append(session)


@pytest.fixture
def engine():
    return Recorder()


def requests_of(count):
    return [Request(key, np.zeros(1, np.float32), (1,)) for key in range(count)]


def test_rows_are_free_until_results_are_returned(engine):
    session, requests = Session(engine, DecodeOptions(batch_size=3)), requests_of(5)
    assert (session.done, session.free_rows) == (True, 3)
    session.add(requests[:2])
    assert (session.done, session.free_rows) == (False, 1)
    session.add(requests[2:])
    assert session.free_rows == 0
    engine.to_finish = requests
    assert [request.key for request, _ in session.step()] == [0, 1, 2, 3, 4]
    assert (session.done, session.free_rows) == (True, 3)


def test_results_that_another_sessions_step_brought_cost_no_step(engine):
    one, other = (Session(engine, DecodeOptions()) for _ in range(2))
    first, second = requests_of(2)
    one.add([first])
    other.add([second])
    engine.to_finish = [first, second]
    assert one.step() == [(first, RESULT)]
    assert other.step() == [(second, RESULT)]
    assert engine.steps == 1


def test_a_step_without_requests_does_nothing(engine):
    session = Session(engine, DecodeOptions())
    session.add([])
    assert session.step() == []
    assert (engine.steps, engine.added) == (0, [])


def test_leaving_a_session_early_cancels_it_once(engine):
    with Session(engine, DecodeOptions()) as session:
        session.add(requests_of(2))
    session.close()
    assert engine.cancelled == [session]
    assert session.done


def test_a_session_that_is_done_has_nothing_to_cancel(engine):
    with Session(engine, DecodeOptions()) as session:
        (request,) = requests_of(1)
        session.add([request])
        engine.to_finish = [request]
        session.step()
    assert engine.cancelled == []


def test_an_error_is_raised_by_the_next_step(engine):
    session = Session(engine, DecodeOptions())
    session.add(requests_of(1))
    session.error = RuntimeError("lost")
    with pytest.raises(RuntimeError, match="lost"):
        session.step()
    assert engine.steps == 0
