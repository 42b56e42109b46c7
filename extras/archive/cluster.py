"""The workers on a Ray cluster: all that knows Ray.

They are a pool of Ray Data's actors. Ray brings each block of work to a free actor, and starts
again whatever dies, for ever; the marks in the output place (extras/archive/results.py) name the
recording that kills its workers, and count workers that die while they load. Rows are addresses, so
that nothing large travels.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extras.archive.manifest import Recording
from extras.archive.records import Record
from extras.archive.worker import Task, Worker

# A worker on the CPU has at least so many cores by default, where a machine has them.
CORES_A_WORKER = 4
# Bytes of shared memory of the cluster on this machine. Addresses and records go through it.
OBJECT_STORE = 256 * 2**20
# Seconds in which a cluster's machine must answer.
PATIENCE = 20.0
# What a row of the run tells in its text: a record, or why the run is at its end.
RECORD, NOT_LOADED, ENDED = "record", "not loaded", "ended"


class ClusterError(Exception):
    """The cluster cannot be reached, or the run on it has ended; one line."""


class LoadError(ClusterError):
    """The models do not load, or do not take the parameters; one line."""


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
    """Return the pool for machines with these resources, `CPU` and `GPU`, by Ray's count.

    A whole GPU each where there are any, with its share of the cores, unless `device` is "cpu".
    Otherwise cores. One core of each machine is left for reading and for Ray itself. `workers` says
    how many instead, at most as many as there are GPUs. Raises ClusterError if there is no device.
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
        raise ClusterError("no machine of the cluster has a core to compute with")
    count = workers or sum(max(1, cores // CORES_A_WORKER) for cores in free)
    cores = max(free)
    while cores > 1 and sum(each // cores for each in free) < count:
        cores -= 1
    return Pool(count, cores)


class Actor:
    """Runs blocks on a worker, in a process of the cluster.

    It raises nothing: Ray would start an actor that raises in its constructor again for ever, and
    print hundreds of lines each time. The driver ends the run if a row says so.
    """

    def __init__(self, task: Task) -> None:
        import ray

        self._fault: dict[str, str] | None = None
        try:
            self._worker = Worker(task, str(ray.get_runtime_context().get_actor_id()))
        except OSError as error:
            self._fault = _row(ENDED, _line(error))
        except Exception as error:
            self._fault = _row(NOT_LOADED, _line(error))

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, str]]:
        """Yield the records of a block, or what ends the run."""
        if self._fault is not None:
            yield self._fault
            return
        block = [Recording(**each) for each in json.loads(row["block"])]
        try:
            for each in block:
                yield _row(RECORD, json.dumps(self._worker.run(each).to_json()))
        except Exception as error:
            yield _row(ENDED, _line(error))


def _row(kind: str, text: str) -> dict[str, str]:
    """Return texts, because Ray would give columns types of its own."""
    return {"kind": kind, "text": text}


class Cluster:
    """Ray, connected to the cluster at `address`, or to one on this machine that ends with the
    `with` block.

    `device` is the setting DEVICE, `workers` how many of them instead of the default.
    """

    def __init__(self, address: str | None, device: str, workers: int | None = None) -> None:
        self._address, self._device, self._workers = address, device, workers

    def __enter__(self) -> Cluster:
        """Connect. Raises ClusterError."""
        try:
            _knock(self._address)  # before Ray, whose import takes seconds
        except OSError as error:
            raise ClusterError(f"no cluster: {_line(error)}") from error
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise ClusterError("Ray is missing: scripts/setup --archive installs it") from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is None:
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(self._address or "local", **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ClusterError(f"no cluster: {_line(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()

    def pool(self) -> Pool:
        """Return what there is to compute with. Raises ClusterError."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return plan(nodes, self._device, self._workers)

    def run(self, task: Task, blocks: Sequence[Sequence[Recording]]) -> Iterator[Record]:
        """Yield the records of all recordings, block by block as they are ready.

        Raises LoadError if models do not load, and ClusterError with the reason if workers cannot
        be started or cannot write.
        """
        import ray

        _keep_quiet()
        pool = self.pool()
        rows = [{"block": json.dumps([each.to_json() for each in block])} for block in blocks]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).flat_map(
            Actor,
            fn_constructor_args=(task,),
            compute=ray.data.ActorPoolStrategy(size=pool.workers, max_tasks_in_flight_per_actor=1),
            num_cpus=pool.cores,
            num_gpus=pool.gpus,
        )
        try:
            for row in dataset.iter_rows():
                if row["kind"] == NOT_LOADED:
                    raise LoadError(row["text"])
                if row["kind"] == ENDED:
                    raise ClusterError(f"the run has ended: {row['text']}")
                yield Record.read(json.loads(row["text"]))
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the run has ended: {_line(error)}") from error


def _knock(address: str | None) -> None:
    """Connect once, because Ray tries for minutes. Raises OSError."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), PATIENCE).close()


def _keep_quiet() -> None:
    """Keep Ray's bars and log off the terminal, and let no long block end the run."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    context.execution_no_progress_timeout_s = 10**9
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="ray")


def _line(error: BaseException) -> str:
    """Return the last line of an error; Ray's errors have the reason there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
