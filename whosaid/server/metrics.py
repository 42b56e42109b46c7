"""Metrics for Prometheus at `/metrics`.

Every label has a small fixed set of values (names of routes instead of paths), so that clients
cannot create series. Histograms of seconds reach the ten minutes that a long recording takes.
"""

import asyncio
from collections.abc import Iterator
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from whosaid.endpoint import Endpoint
from whosaid.runtime.versions import versions
from whosaid.server.admission import Admission
from whosaid.server.jobs.store import JobStore
from whosaid.server.keys import Account

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
BYTES = tuple(10.0**power for power in range(3, 10))

# The _created series of the counters would double the page.
disable_created_metrics()

READY = ("asr_ready", "1 if requests are accepted")
LOADING = CollectorRegistry()
Gauge(*READY, registry=LOADING)
# The process's own series.
PROCESS = CollectorRegistry()
ProcessCollector(registry=PROCESS)
Info("asr_build", "Versions of Python and libraries", registry=PROCESS).info(
    {name.lower().replace(".", "_"): release for name, release in versions().items()}
)


class EngineMetrics(Collector):
    """Metrics of the endpoint and its engine, collected at each read."""

    def __init__(self, endpoint: Endpoint, admission: Admission) -> None:
        self.endpoint, self.admission = endpoint, admission

    def collect(self) -> Iterator[Metric]:
        idle = self.endpoint.idle
        running, waiting, rows = (0, 0, 0) if idle else self.endpoint.transcriber.windows
        permits = self.admission.permits
        gauges = {
            "asr_requests_in_progress": ("Requests admitted", permits.taken),
            "asr_held_body_bytes": ("Bytes of held request bodies", permits.held_bytes),
            "asr_queue_requests": ("Requests read, not answered", self.endpoint.outstanding),
            "asr_rows": ("Windows that can be decoded at once; 0 while idle", rows),
            "asr_running_rows": ("Windows being decoded", running),
            "asr_held_audio_bytes": ("Bytes of decoded audio", self.endpoint.held_audio_bytes),
            "asr_waiting_windows": ("Windows that wait for a row", waiting),
            "asr_live_sessions_open": ("Live sessions", len(self.admission.live.taken)),
            "asr_engine_alive": ("1 if the engine's thread runs", int(self.endpoint.alive)),
        }
        yield GaugeMetricFamily(*READY, int(self.endpoint.alive and not self.admission.draining))
        for name, (what, number) in gauges.items():
            yield GaugeMetricFamily(name, what, number)
        counts = self.endpoint.counts
        counters: dict[str, tuple[str, float]] = {
            "asr_windows": ("Windows decoded", counts.windows),
            "asr_rounds": ("Decoding steps of the whole batch", counts.steps),
            "asr_batch_rows": ("Rows of all steps; divided by steps, the mean batch", counts.rows),
            "asr_tokens": ("Tokens decoded", counts.decoded.tokens),
            "asr_live_sessions": ("Live sessions begun", self.admission.live.opened),
            "asr_live_audio_seconds": ("Seconds of live audio", self.admission.live.audio_seconds),
            "asr_fallbacks": ("Windows decoded again", counts.decoded.retries),
        }
        for name, (what, total) in counters.items():
            yield CounterMetricFamily(name, what, total)
        parts = GaugeMetricFamily("asr_load_seconds", "Seconds of the latest load", labels=["part"])
        for part, seconds in self.endpoint.load_seconds.items():
            parts.add_metric([part], seconds)
        yield parts
        drafts = CounterMetricFamily("asr_drafts", "Draft tokens, by outcome", labels=["result"])
        drafts.add_metric(["accepted"], counts.decoded.accepted)
        drafts.add_metric(["rejected"], counts.decoded.drafted - counts.decoded.accepted)
        yield drafts


class JobMetrics(Collector):
    """Metrics of the jobs in a store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        counts, kept = self._store.counts()
        jobs = GaugeMetricFamily("asr_jobs", "Jobs kept", labels=["status"])
        for status, count in counts.items():
            jobs.add_metric([status.value], count)
        yield jobs
        yield GaugeMetricFamily("asr_jobs_bytes", "Bytes of recordings and answers of jobs", kept)


class Metrics:
    """The series of one server; those in the registry `on_disk` need a disk."""

    def __init__(self, engine: Collector) -> None:
        self.registry, self.on_disk = CollectorRegistry(), CollectorRegistry()
        self.registry.register(engine)
        counter = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=SECONDS, registry=self.registry)
        self.requests = counter(
            "asr_requests",
            "Requests by route, HTTP status and error code (OK if there is none)",
            ["route", "status", "code"],
        )
        self.refused = counter(
            "asr_refused", "Requests refused before parsing their body", ["code"]
        )
        self.cancelled = counter("asr_cancelled", "Requests whose client disconnected")
        self.audio_seconds = counter("asr_audio_seconds", "Seconds of audio answered")
        self.seconds = seconds(
            "asr_request_duration_seconds",
            "From a request's head to the end of its answer",
            ["route"],
        )
        self.first_event = seconds(
            "asr_time_to_first_event_seconds",
            "From the head of a streaming request to its first event",
        )
        self.until_decoded = seconds(
            "asr_queue_wait_seconds", "From a complete request to its audio being decoded"
        )
        self.body_bytes = Histogram(
            "asr_body_bytes", "Size of request bodies", buckets=BYTES, registry=self.registry
        )
        self.key_requests = counter("asr_key_requests", "Requests of a key's name", ["key", "code"])
        self.key_audio = counter("asr_key_audio_seconds", "Audio of a key's name", ["key"])

    def charge(self, account: Account | None, seconds: float) -> None:
        """Count a request's or a session's audio for the name of its key, if there is one."""
        if account is not None:
            account.charge(seconds)
            self.key_audio.labels(account.name).inc(seconds)

    async def text(self) -> bytes:
        # In a thread, so that no request waits for the disk; the other metrics belong to this
        # thread.
        on_disk = await asyncio.to_thread(generate_latest, self.on_disk)
        return generate_latest(self.registry) + on_disk + generate_latest(PROCESS)


def text_while_loading() -> bytes:
    return generate_latest(LOADING) + generate_latest(PROCESS)
