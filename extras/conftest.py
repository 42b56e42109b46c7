"""The fixtures of `tests/`, for tests of the extras."""

from tests.conftest import (  # noqa: F401
    every_format,
    no_names_are_looked_up,
    pytest_sessionfinish,
    source,
    steps_are_timed_once,
    survivors_are_not_collected,
    torch_is_seeded,
    wav,
    whisper_folder,
)
