"""How modules are imported that bring a million objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def modules_that_stay() -> Iterator[None]:
    """Import in this block what stays until the process ends: Python's collector does not look
    through it meanwhile, which takes a tenth to a fifth of the time of torch's and transformers'
    import (`python -X importtime -c "import handler"`), nor later.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
