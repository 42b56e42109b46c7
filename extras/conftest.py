"""The fixtures of `tests/`, for tests of the extras."""

from tests.conftest import (  # noqa: F401
    every_format,
    no_names_are_looked_up,
    pytest_sessionfinish,
    source,
    steps_are_timed_once,
    torch_draws_the_same,
    wav,
    what_lasts_is_not_looked_through,
    whisper_folder,
)
