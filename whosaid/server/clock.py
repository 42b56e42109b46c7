"""The time. The wall clock's jumps do not count, so nothing expires or waits because of a jump."""

import time

# These clocks count while the machine sleeps, on Linux and on macOS.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ZERO = time.time() - time.clock_gettime(_CLOCK)


def now() -> float:
    """Return seconds since 1970, by the wall clock at the start of the process."""
    return _ZERO + time.clock_gettime(_CLOCK)
