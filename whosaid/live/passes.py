"""The audio of a decoding pass, which its item and the item's last event keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from whosaid.asr import Prior, TranscriptionOptions


@dataclass(frozen=True, eq=False)
class PassAudio:
    """Samples (n,) to decode, `begin` to `stop` of the session: a whole item like a file, with the
    items just `before` it in the same window, or an item up to the current sample.
    """

    begin: int
    stop: int
    samples: NDArray[np.float32]
    options: TranscriptionOptions
    before: Prior | None = None

    @property
    def final(self) -> bool:
        """Return whether the result is the item's final text."""
        return self.before is not None
