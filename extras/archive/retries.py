"""What a store refuses for a moment is asked for again.

Single reads and writes of files are tried again, each of which may be done twice. What another try
cannot mend, a missing file, a full disk, a right that is lacking, is raised at once; everything
else is taken for the network's, because object stores give it no number.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# Seconds before each further try; clients of object stores have tried a few times by themselves.
PAUSES = (0.5, 2.0, 8.0)
LASTING = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
LASTING_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}


def is_lasting(error: OSError) -> bool:
    """Whether another try is in vain."""
    return isinstance(error, LASTING) or error.errno in LASTING_NUMBERS


def patiently(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `operation` returns, at the latest after the last of PAUSES. Raises its last OSError."""
    for pause in PAUSES:
        try:
            return operation(*args, **kwargs)
        except OSError as error:
            if is_lasting(error):
                raise
        time.sleep(pause)
    return operation(*args, **kwargs)
