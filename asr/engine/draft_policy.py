"""How a batch drafts: which windows are prepared for it, and how far a step drafts.

Unless a request fixes the number of drafts, measured costs and acceptance decide twice. A window is
prepared for drafts only if they pay as it enters, preparing included; each step then drafts as many
tokens as pay among the rows that run. Where drafts do not pay, an assistant has no memory, hears
nothing and reads nothing, and no step keeps up the state of heads.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.engine.draft_length import DraftLength
from asr.engine.drafters import DraftModel, follows, most_drafts
from asr.engine.request import DecodeOptions

NEWEST = 2  # tokens that an assistant may not have read after a step with drafts


class DraftPolicy:
    """The policy of one batch, whose drafter is `model`, if any."""

    def __init__(self, model: DraftModel | None) -> None:
        self.model = model
        self.follows = follows(model)
        self._unread = 1 if self.follows else NEWEST

    def prepares(
        self, options: DecodeOptions, drafting: DraftLength | None, rows: int, new: int
    ) -> bool:
        """Whether `new` windows with these options, which make `rows` rows, may be drafted for.

        `drafting` is None if nothing was measured. Its estimates decay if drafts do not pay.
        """
        if not options.assisted or self.model is None:
            return False
        if options.drafts is not None:
            return options.drafts > 0
        if drafting is None or drafting.pays(rows):
            return drafting is not None
        drafting.decay(new)
        return False

    def choose(
        self, draftable: Sequence[DecodeOptions], drafting: DraftLength | None, rows: int
    ) -> int:
        """How many tokens to draft for rows with the options `draftable`, among `rows` rows."""
        if self.model is None:
            return 0
        fixed = [each.drafts for each in draftable if each.drafts is not None]
        if len(fixed) < len(draftable) and drafting is not None:
            fixed.append(drafting.choose(rows, len(draftable)))
        return min(max(fixed, default=0), most_drafts(self.model))

    def lag(self, drafts: int, longest: int) -> int:
        """The assistant's lag in a step of so many drafts, where no row is longer than `longest`.

        Counts the step.
        """
        lag = min(self._unread, longest) if drafts else 1
        if not self.follows:
            self._unread = NEWEST if drafts else self._unread + 1
        return lag
