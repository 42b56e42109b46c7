"""The process and the machine it runs on: device, threads, memory, libraries, logs, imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def modules_that_stay() -> Iterator[None]:
    """Disable garbage collection in a block of imports, and exempt the imported objects for good.

    The million objects of torch and transformers stay until the process ends. Skipping them saves a
    tenth to a fifth of the import (`python -X importtime -c "import handler"`).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
