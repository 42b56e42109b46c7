"""The two compared servers, each in its own process on loopback.

Both get the same models through the same environment variables, and the same requests, so that only
the server differs. The server that waits for its turn sleeps.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from subprocess import Popen

from config import DEMO_MODELS
from tests.support.servers import HF_SERVE_LISTENS, OURS_LISTENS, Server, following, hf_serve, ours

HF_SERVE, OURS = "hf-serve", "ours"
SERVERS = (OURS, HF_SERVE)
STARTS: Mapping[str, tuple[Callable[..., Popen[str]], str]] = {
    OURS: (ours, OURS_LISTENS),
    HF_SERVE: (hf_serve, HF_SERVE_LISTENS),
}
# The queue holds all measured requests, so that they wait instead of being refused.
ENVIRONMENT = {"DTYPE": "auto", "MAX_QUEUE": "100000"}
ENVIRONMENT |= {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
DEMO = {"ASR_MODEL": str(DEMO_MODELS / "asr"), "ASSISTANT_MODEL": str(DEMO_MODELS / "assistant")}


@contextmanager
def running(models: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the URLs of both servers by name; raises OSError if one does not start."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(started(name, models)).url for name in SERVERS}


@contextmanager
def started(name: str, environment: Mapping[str, str]) -> Iterator[Server]:
    """Run the server `name` with this environment; raises OSError if it does not start."""
    start, listens = STARTS[name]
    with start(**{**ENVIRONMENT, **environment}) as process, following(process, listens) as server:
        yield server
