"""The workers on a Ray cluster; the only module that uses Ray.

Each worker is an actor that has one recording at a time. So the driver knows which recording a dead
process had, and gives it to a new process or gives it up. If a recording takes too long, its
process is ended, because nothing else can stop it.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extras.archive.manifest import Recording
from extras.archive.records import DEADLINE_EXCEEDED, WORKER_DIED, Record
from extras.archive.results import Results
from extras.archive.worker import Task, Worker

# Least cores of a CPU worker by default, if a machine has them.
CORES_A_WORKER = 4
# Bytes of shared memory of a local cluster.
OBJECT_STORE = 256 * 2**20
# Seconds within which a cluster's head must answer.
PATIENCE = 20.0
# Seconds between two checks for late jobs.
LOOK = 1.0
# The most processes that may die of one recording, or of loading the models.
MOST_ATTEMPTS = 3


class ClusterError(Exception):
    """The cluster cannot be reached, or the run on it has ended; one line."""


class LoadError(ClusterError):
    """The models do not load, or do not support the parameters; one line."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The number of workers, and the cores and GPUs of each."""

    workers: int
    cores: int
    gpus: int = 0

    def __str__(self) -> str:
        on = "a GPU" if self.gpus else f"{self.cores} cores" if self.cores > 1 else "one core"
        return (
            f"{self.workers} workers with {on} each" if self.workers > 1 else f"1 worker with {on}"
        )


def plan(nodes: Sequence[Mapping[str, float]], device: str, workers: int | None = None) -> Pool:
    """Return the pool for machines with these resources, Ray's `CPU` and `GPU`: a GPU for each
    worker, unless `device` is "cpu", and its share of the cores, less one of each machine for Ray.
    `workers` overrides their number, up to that of GPUs. Raises ClusterError without a device.
    """
    with_gpu = [node for node in nodes if device != "cpu" and node.get("GPU", 0) >= 1]
    if with_gpu:
        gpus = sum(int(node["GPU"]) for node in with_gpu)
        shares = [(int(node.get("CPU", 0)) - 1) // int(node["GPU"]) for node in with_gpu]
        return Pool(min(workers or gpus, gpus), cores=max(1, min(shares)), gpus=1)
    if device == "cuda":
        raise ClusterError("DEVICE is cuda, and no machine of the cluster has a GPU")
    free = [max(1, int(node["CPU"]) - 1) for node in nodes if node.get("CPU", 0) >= 1]
    if not free:
        raise ClusterError("no machine of the cluster has a free core")
    count = workers or sum(max(1, cores // CORES_A_WORKER) for cores in free)
    cores = max(free)
    while cores > 1 and sum(each // cores for each in free) < count:
        cores -= 1
    return Pool(count, cores)


@dataclass(frozen=True, slots=True)
class _Job:
    """An actor's `attempt` at a `recording` or a load; `late` is its deadline (monotonic clock)."""

    actor: Any
    attempt: int
    recording: Recording | None = None
    late: float = math.inf


class Cluster:
    """A run on the cluster at `address`, or on a local one that ends with the `with` block. It
    holds the remaining recordings, and the actors' jobs by the reference to their outcome.
    """

    def __init__(self, task: Task, address: str | None, workers: int | None = None) -> None:
        self._task, self._address, self._workers = task, address, workers
        self._left: deque[tuple[Recording, int]] = deque()
        self._jobs: dict[Any, _Job] = {}

    def __enter__(self) -> Cluster:
        """Connect, and plan the `pool` of workers. Raises ClusterError."""
        try:
            _knock(self._address)  # before Ray, whose import takes seconds
        except OSError as error:
            raise ClusterError(f"no cluster: {_line(error)}") from error
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is None:
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(self._address or "local", **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ClusterError(f"no cluster: {_line(error)}") from error
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.pool = plan(nodes, self._task.settings["device"], self._workers)
        self._actor: Any = ray.remote(num_cpus=self.pool.cores, num_gpus=self.pool.gpus)(Worker)
        self._ray: Any = ray
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def run(self, recordings: Sequence[Recording]) -> Iterator[Record]:
        """Yield the records of all recordings as they are ready. Raises LoadError for the models,
        and ClusterError if workers cannot be started or cannot write.
        """
        # The largest recordings first, so that no worker has a long one at the end.
        ordered = sorted(recordings, key=lambda each: (-each.size, each.id))
        self._left.extend((recording, 1) for recording in ordered)
        for _ in range(min(self.pool.workers, len(self._left))):
            self._start()
        # An actor may wait until the end for a device that others use.
        while self._left or any(job.recording for job in self._jobs.values()):
            done, _ = self._ray.wait([*self._jobs], timeout=LOOK)
            for reference in done:
                yield from self._take(reference)
            for reference, job in [*self._jobs.items()]:
                if job.recording is not None and job.late < time.monotonic():
                    del self._jobs[reference]
                    self._ray.kill(job.actor)
                    seconds = self._task.deadline_of(job.recording)
                    late = f"it took over {seconds:.0f} s"
                    yield self._fail(job.recording, job.attempt, DEADLINE_EXCEEDED, late, seconds)
                    self._start()

    def _take(self, reference: Any) -> Iterator[Record]:  # noqa: ANN401
        """Yield the record of an ended job, if it has one, and start another job."""
        job = self._jobs.pop(reference)
        try:
            record = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            reason = _line(error.cause)
            if job.recording is None:
                raise LoadError(reason) from error
            raise ClusterError(f"the run has ended: {reason}") from error
        except self._ray.exceptions.RayError:
            yield from self._after_death(job)
            return
        if self._left:
            recording, attempt = self._left.popleft()
            late = time.monotonic() + self._task.deadline_of(recording)
            following = job.actor.run.remote(recording, attempt)
            self._jobs[following] = _Job(job.actor, attempt, recording, late)
        if record is not None:
            yield record

    def _after_death(self, job: _Job) -> Iterator[Record]:
        """Repeat a dead process's job in another, or yield its failed record. Raises LoadError."""
        if job.recording is None:
            if job.attempt == MOST_ATTEMPTS:
                raise LoadError(f"the process died {MOST_ATTEMPTS} times while loading the models")
            self._start(job.attempt + 1)
            return
        if job.attempt < MOST_ATTEMPTS:
            self._left.appendleft((job.recording, job.attempt + 1))
        else:
            died = f"the process that computed it died {MOST_ATTEMPTS} times"
            yield self._fail(job.recording, job.attempt, WORKER_DIED, died)
        self._start()

    def _start(self, attempt: int = 1) -> None:
        if self._left:
            actor = self._actor.remote(self._task)
            self._jobs[actor.load.remote()] = _Job(actor, attempt)

    def _fail(
        self, recording: Recording, attempt: int, code: str, detail: str, seconds: float = 0.0
    ) -> Record:
        record = Record(recording.id, recording.path, code, detail, None, seconds, attempt)
        Results(self._task.out).write_error(record)
        return record


def _knock(address: str | None) -> None:
    """Try a connection, because Ray would retry for minutes. Raises OSError."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), PATIENCE).close()


def _line(error: BaseException) -> str:
    """Return the last line of an error, which has the reason in Ray's errors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
