"""How many jobs there are, for whoever reads the metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.jobs.store import JobStore


class JobMetrics(Collector):
    """What a store says of its jobs."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Every series with its value of now."""
        counts, kept = self._store.counts()
        jobs = GaugeMetricFamily("asr_jobs", "Jobs that are kept", labels=["status"])
        for status, count in counts.items():
            jobs.add_metric([status.value], count)
        yield jobs
        yield GaugeMetricFamily("asr_jobs_bytes", "Bytes of their recordings and answers", kept)
