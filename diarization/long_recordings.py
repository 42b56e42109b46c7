"""Turns put together from windows in memory that a long recording has.

pyannote writes down who speaks for every window, frame and speaker before it adds windows up: 17 MB
an hour for each speaker, and more than once. Here a window is written down when it is its turn,
which gives the same.

`spare_memory` replaces one method of one loaded pipeline, `SpeakerDiarization.reconstruct` of
pyannote.audio 3.3 to 4.0. A pipeline with another signature keeps its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The signature of the method that is replaced.
PARAMETERS = ["segmentations", "hard_clusters", "count"]

Array = NDArray[Any]


def spare_memory(pipeline: Any) -> None:  # noqa: ANN401
    """Replace the `reconstruct` of `pipeline`, where it has one."""
    method = getattr(pipeline, "reconstruct", None)
    if method is not None and list(inspect.signature(method).parameters) == PARAMETERS:
        pipeline.reconstruct = _reconstruct_by(pipeline.to_diarization)


def _reconstruct_by(to_diarization: Callable[[Any, Any], Any]) -> Callable[[Any, Array, Any], Any]:
    def reconstruct(segmentations: Any, hard_clusters: Array, count: Any) -> Any:  # noqa: ANN401
        """As `SpeakerDiarization.reconstruct`."""
        return to_diarization(ClusteredWindows(segmentations, hard_clusters), count)

    return reconstruct


class ClusteredWindows:
    """What `pyannote.audio.Inference.aggregate` reads of a SlidingWindowFeature: who of all
    speakers speaks in each window.

    `segmentations`, a SlidingWindowFeature (windows, frames, speakers of the window), has who
    speaks in it, and `clusters` (windows, speakers of the window) who they are, -2 for nobody.
    """

    def __init__(self, segmentations: Any, clusters: Array) -> None:  # noqa: ANN401
        self._segmentations, self._clusters = segmentations, clusters
        self.sliding_window = segmentations.sliding_window
        windows, frames, _ = segmentations.data.shape
        # The shape alone is asked for, and of one number that is repeated it takes no memory.
        self.data = np.broadcast_to(np.nan, (windows, frames, int(clusters.max()) + 1))

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        """Each window with its scores (frames, all speakers), NaN for who is not in it."""
        for clusters, (window, activity) in zip(self._clusters, self._segmentations, strict=True):
            scores = np.full(self.data.shape[1:], np.nan)
            for cluster in np.unique(clusters[clusters != -2]):
                scores[:, cluster] = activity[:, clusters == cluster].max(axis=1)
            yield window, scores
