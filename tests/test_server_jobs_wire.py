"""A job as its client and its callback are told of it."""

from __future__ import annotations

import json

from whosaid.asr import Progress
from whosaid.server.jobs.store import Job
from whosaid.server.jobs.wire import callback_json, job_json

FAILED = Job(
    "job_1", "failed", 10.9, 20.2, 30.7, "INVALID_AUDIO: no audio: stream", "https://x/", 2, False
)
RUNNING = Job("job_2", "running", 10.0, 11.0, None, None, None, 0, False)


def test_times_are_whole_seconds_and_an_error_is_its_code_and_all_of_its_text():
    told = job_json(FAILED, 100.0)
    times = ("created_at", "started_at", "ended_at", "expires_at")
    assert [told[name] for name in times] == [10, 20, 30, 130]
    assert told["error"] == {"code": "INVALID_AUDIO", "message": "INVALID_AUDIO: no audio: stream"}
    assert told["callback"] == {"delivered": False, "tries": 2}


def test_what_has_not_come_yet_is_null():
    told = job_json(RUNNING, 100.0, Progress(0.123, 9.0, ()))
    assert told["progress"] == {"done": 0.12, "total": 9.0}
    for name in ("ended_at", "expires_at", "error", "callback"):
        assert told[name] is None


def test_a_callback_tells_the_end_and_nothing_of_the_answer():
    assert json.loads(callback_json(FAILED)) == {
        "type": "job.failed",
        "timestamp": "1970-01-01T00:00:30Z",
        "data": {"id": "job_1", "status": "failed", "error": job_json(FAILED, 0.0)["error"]},
    }
