"""A job as its client reads it, and as a callback tells of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from whosaid.asr import Progress
from whosaid.server.jobs.store import Job


def job_json(job: Job, kept_seconds: float, progress: Progress | None = None) -> dict[str, Any]:
    """Return a job in the form of `/v1/jobs`, kept for `kept_seconds` after its end. Times are
    whole seconds since 1970.
    """
    expires = None if job.ended is None else job.ended + kept_seconds
    times = {
        "created_at": job.created,
        "started_at": job.started,
        "ended_at": job.ended,
        "expires_at": expires,
    }
    return {
        "id": job.id,
        "object": "job",
        "status": job.status,
        **{name: None if time is None else int(time) for name, time in times.items()},
        "progress": progress
        and {"done": round(progress.done, 2), "total": round(progress.total, 2)},
        "error": _error_json(job.error),
        "callback": job.callback_url
        and {"delivered": job.callback_delivered, "tries": job.callback_tries},
    }


def callback_json(job: Job) -> bytes:
    """Return the body of a callback."""
    ended = datetime.fromtimestamp(job.ended or 0, UTC)
    body = {
        "type": f"job.{job.status}",
        "timestamp": ended.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "data": {"id": job.id, "status": job.status, "error": _error_json(job.error)},
    }
    return json.dumps(body).encode()


def _error_json(error: str | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.partition(":")[0], "message": error}
