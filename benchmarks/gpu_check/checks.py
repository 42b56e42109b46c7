"""The checks of the machine, of loading, of texts and of requests.

Expected values follow from the code (equal tokens) or are wide bounds defined here, never another
machine's figures.
"""

import math
import platform
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import joblib
import torch
import transformers
from rapidfuzz.distance import Levenshtein

from benchmarks.gpu_check.memory import GB, footprint
from benchmarks.gpu_check.page import Finding, judge, leave_out, note
from benchmarks.gpu_check.subject import CONVERSATION, Subject, lasting
from benchmarks.report import settings as machine_settings
from config import REPOSITORY, ModelSettings
from tests.support.audio_files import request_body
from tests.support.decoding import decode
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.model.cuda_attention import was_measured
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.endpoint import Endpoint
from whosaid.runtime.device import DIARIZATION_BYTES
from whosaid.scheduling.shortest_first import QueuedAudio
from whosaid.timebase import SAMPLE_RATE

# Results of windows by their keys.
Texts = Mapping[Hashable, DecodeResult]
NO_GPU = "this machine uses no GPU"
ROUNDED_SHARE = 0.03  # of words, which rounding may change
# A model with more parameters is compared with the CPU only on the first window.
LARGE_PARAMETERS, FEW_WINDOWS = 300_000_000, 1
# Seconds by which the first request may exceed a later one, because it prepares more shapes.
FIRST_REQUEST_EXTRA = 5.0

LARGE_BATCH = 24  # windows decoded for comparison
GREEDY = DecodeOptions(batch_size=LARGE_BATCH, assisted=False, drafts=0)
OTHER_STEPS = {
    "beam": DecodeOptions(batch_size=4, num_beams=5, timestamps=False),
    "live": replace(GREEDY, live=True),
}

AT_ONCE = 4  # requests
DIARIZED_SECONDS = 600.0
DRIVER = Path("/proc/driver/nvidia/version")


def check_machine(settings: ModelSettings, device: torch.device | None) -> list[Finding]:
    """Check GPU, versions and threads; `device` is None if there is no usable one."""
    machine = machine_settings(())
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    python = f"transformers {transformers.__version__}, Python {platform.python_version()}"
    usable, used = joblib.cpu_count(), torch.get_num_threads()
    expected = f"at most the {usable} processors of this process"
    models = (settings.asr_model, settings.assistant_model, settings.diarization_model)
    names = (str(model or "none").removeprefix(f"{REPOSITORY}/") for model in models)
    variables = f"DEVICE={settings.device}, CUDA_GRAPHS={str(settings.cuda_graphs).lower()}"
    return [
        *_check_gpu(device),
        note("machine", f"{machine['processor']}, {machine['cores']} processors"),
        note("versions", f"{versions}, cuDNN {cudnn}, {python}"),
        judge("threads of torch", expected, str(used), used <= usable),
        note("models", ", ".join(names)),
        note("settings", variables),
    ]


def _check_gpu(device: torch.device | None) -> list[Finding]:
    if device is None or device.type != "cuda":
        return [leave_out("GPU", NO_GPU)]
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    capability = f"{properties.major}.{properties.minor}"
    driver = re.search(r"\d+\.\d+(\.\d+)?", DRIVER.read_text()) if DRIVER.is_file() else None
    built = " ".join(torch.cuda.get_arch_list())
    found = f"{free / GB:.1f} of {total / GB:.1f} GB"
    cudnn = "where it agrees" if was_measured(device, torch.float16) else "not on this device"
    return [
        note("GPU", f"{properties.name}, compute capability {capability}"),
        note("driver", f"{driver[0] if driver else 'unknown'}; torch is built for {built}"),
        judge("memory free before load", "at least 90%", found, free >= 0.9 * total),
        note("cuDNN's attention", cudnn),
    ]


def check_load(subject: Subject) -> list[Finding]:
    """Load the models; check precision and captured graphs, and note seconds and memory."""
    subject.load()
    engine = subject.engine
    device = engine.main.token_embeddings.device.type
    dtype = engine.models.product_dtype or engine.main.token_embeddings.dtype
    fine = (device, dtype) == (subject.device.type, subject.dtype)
    expected = f"{_short(subject.dtype)} on {subject.device.type}"
    return [
        note("load and warm-up", f"{subject.load_seconds:.1f} s"),
        judge("weights", expected, f"{_short(dtype)} on {device}", fine),
        _check_graphs(subject),
        _check_memory(subject),
        _check_reload(subject),
    ]


def _check_graphs(subject: Subject) -> Finding:
    """Check that every planned graph was captured; each is compared with its eager pass then."""
    name = "graphs captured at load"
    if not subject.on_cuda:
        return leave_out(name, NO_GPU)
    if not subject.settings.cuda_graphs:
        return leave_out(name, "CUDA_GRAPHS turns them off")
    runner = subject.graphs
    if runner is None:
        return judge(name, "done", "graphs are off: see the log", fine=False)
    captured, planned = runner.graph_count, runner.planned
    return judge(name, str(planned), str(captured), captured >= planned)


def _check_reload(subject: Subject) -> Finding:
    """Check that rows are allocated again, with as many graphs, and note the seconds."""
    name, graphs = "rows released and allocated again", subject.graphs
    if graphs is None:
        return leave_out(name, NO_GPU if not subject.on_cuda else "graphs are off")
    memory, started = subject.engine.memory, time.perf_counter()
    before = f"{memory.capacity} rows, {graphs.graph_count} graphs"
    with subject.engine.computing():
        memory.release()
        memory.ensure_capacity(memory.most)
    found, seconds = f"{memory.capacity} rows, {graphs.graph_count} graphs", time.perf_counter()
    return judge(name, before, f"{found}, {seconds - started:.1f} s", found == before)


def _check_memory(subject: Subject) -> Finding:
    """Note what holds the device's memory; check that diarization has what it needs."""
    name = "memory after load"
    if not subject.on_cuda:
        return leave_out(name, NO_GPU)
    engine, models = subject.engine, subject.transcriber.models
    loaded = [models.model] if models.assistant is None else [models.model, models.assistant.model]
    size = footprint(loaded, engine.main, engine.draft_model)
    rows = engine.memory.capacity
    free, total = torch.cuda.mem_get_info(subject.device)
    allocated = torch.cuda.memory_allocated(subject.device)
    reserved = torch.cuda.memory_reserved(subject.device)
    parts = {
        "models": size.models,
        f"{rows} rows": rows * size.per_row,
        "beams and others": allocated - size.with_rows(rows),
        "unused by torch": reserved - allocated,
        "graphs and CUDA's context": total - free - reserved,
        "free": free,
    }
    found = ", ".join(f"{part} {held / GB:.2f}" for part, held in parts.items()) + " GB"
    if subject.settings.diarization_model is None:
        return note(name, found)
    expected = f"{DIARIZATION_BYTES / GB:.1f} GB free, for diarization"
    return judge(name, expected, found, free >= DIARIZATION_BYTES)


def check_texts(subject: Subject) -> list[Finding]:
    """Compare texts: graphs with eager steps, with and without drafts, float16 with float32."""
    different, engine = subject.windows(), subject.engine
    windows = _fill_batch(different) if subject.on_cuda else different

    def decoded(options: DecodeOptions) -> Texts:
        return decode(engine, windows, options)[0]

    plain = decoded(GREEDY)
    scores = [value for result in plain.values() for value in result.log_probs]
    finite = sum(map(math.isfinite, scores))
    found = f"{finite} of {len(scores)}"
    findings = [judge("finite log-probabilities", "all", found, finite == len(scores))]
    for kind, options in {"plain": GREEDY, **OTHER_STEPS}.items():
        findings.append(_check_replay(subject, kind, partial(decoded, options)))
    if subject.assisted:
        drafting = replace(GREEDY, assisted=True, drafts=engine.runner.draft_lengths[0])
        findings.append(_check_replay(subject, "drafted", partial(decoded, drafting)))
        drafted = decoded(drafting)
        findings.append(_compare_texts(subject, "text with the assistant", plain, drafted))
    else:
        findings.append(leave_out("text with the assistant", "ASSISTANT_MODEL names none"))
    findings.append(_check_failed_step(subject, partial(decoded, GREEDY), plain))
    return [*findings, _check_precision(subject, different, plain)]


def _check_failed_step(subject: Subject, run: Callable[[], Texts], expected: Texts) -> Finding:
    """Check that a step that fails costs its session alone, and no graph."""
    graphs = subject.graphs.graph_count if subject.graphs else 0
    message, error = "a step fails, for the check", "no error"
    with patch.object(subject.engine.runner, "launch", side_effect=RuntimeError(message)):
        try:
            run()
        except RuntimeError as raised:
            error = str(raised)
    lost = graphs - (subject.graphs.graph_count if subject.graphs else 0)
    found = f"{error}; then {_count_differing(run(), expected)} windows differ, {lost} graphs lost"
    wanted = f"{message}; then 0 windows differ, 0 graphs lost"
    return judge("a failed step", wanted, found, found == wanted)


def _fill_batch(windows: Sequence[Request]) -> list[Request]:
    """Return windows repeated under new numbers until there are enough for a large batch."""
    count = max(LARGE_BATCH, len(windows))
    return [replace(windows[key % len(windows)], key=key) for key in range(count)]


def _check_replay(subject: Subject, kind: str, run: Callable[[], Texts]) -> Finding:
    """Check that graphs and eager passes give equal tokens."""
    name, runner = f"graphs against eager, {kind} steps", subject.graphs
    if runner is None:
        return leave_out(name, NO_GPU if not subject.on_cuda else "graphs are off")
    before = runner.replayed, runner.eager
    replayed = run()
    passes = runner.replayed - before[0], runner.eager - before[1]
    with runner.paused():
        eager = run()
    differing = _count_differing(replayed, eager)
    counts = f"{passes[0]} passes replayed, {passes[1]} not"
    found = f"{differing} of {len(eager)} windows differ; {counts}"
    fine = differing == 0 and passes[0] > passes[1]
    return judge(name, "equal tokens, mostly replayed", found, fine)


def _count_differing(one: Texts, other: Texts) -> int:
    return sum(one[key].tokens != other[key].tokens for key in one)


def _compare_texts(subject: Subject, check: str, expected: Texts, found: Texts) -> Finding:
    """Check that rounding changes at most ROUNDED_SHARE of the words, or one word."""
    tokenizer = subject.transcriber.models.tokenizer

    def words(texts: Texts) -> list[str]:
        tokens = [list(texts[key].tokens) for key in expected]
        decoded = [str(tokenizer.decode(each, skip_special_tokens=True)) for each in tokens]
        return " ".join(decoded).split()

    reference = words(expected)
    errors = Levenshtein.distance(reference, words(found))
    allowed = max(1, int(ROUNDED_SHARE * len(reference)))
    wanted = f"at most {allowed} words differ (rounding)"
    windows = f"{_count_differing(found, expected)} of {len(found)} windows"
    differ = f"{errors} of {len(reference)} words differ, {windows}"
    return judge(check, wanted, differ, errors <= allowed)


def _check_precision(subject: Subject, windows: Sequence[Request], plain: Texts) -> Finding:
    """Compare half precision's text of the first windows with float32's on the CPU."""
    name = "text in float16 against float32 on the CPU"
    if subject.dtype != torch.float16:
        return leave_out(name, f"{NO_GPU}: it computes in {_short(subject.dtype)}")
    weights = subject.transcriber.models.model.named_parameters()
    few = subject.quick or sum(weight.numel() for _, weight in weights) > LARGE_PARAMETERS
    chosen = windows[:FEW_WINDOWS] if few else windows
    exact, _ = decode(subject.reference(), chosen, GREEDY)
    return _compare_texts(subject, name, exact, {number: plain[number] for number in exact})


def check_requests(subject: Subject) -> list[Finding]:
    """Check requests with words and speakers through the handler: the first one, a later one, and
    several at once.
    """
    try:
        from handler import EndpointHandler
    except ImportError as error:
        return [leave_out("all", f"handler.py cannot be imported ({error})")]
    settings = subject.settings
    if find_spec("pyannote") is None:
        settings = settings.model_copy(update={"diarization_model": None})
    endpoint = EndpointHandler(settings=settings, serves=False)
    body = request_body(CONVERSATION.read_bytes(), return_timestamps="word")
    seconds: list[float] = []

    def ask(_: object = None) -> dict[str, Any]:
        started = time.perf_counter()
        answer = endpoint(body)
        seconds.append(time.perf_counter() - started)
        return answer

    first, _ = ask(), ask()
    later = seconds[1]
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(ask, range(AT_ONCE)))
    together = time.perf_counter() - started
    differing = sum(each["text"] != first["text"] for each in answers)
    wanted = f"at most {FIRST_REQUEST_EXTRA:.0f} s more than later"
    found = f"{seconds[0]:.2f} s, later {later:.2f} s"
    rtfx = [f"{work * first['duration'] / t:.1f}" for work, t in ((1, later), (AT_ONCE, together))]
    differ = f"{differing} of {AT_ONCE} texts differ"
    return [
        judge("first request", wanted, found, seconds[0] <= later + FIRST_REQUEST_EXTRA),
        _check_answer(settings, first),
        note(f"RTFx of a request, and of {AT_ONCE} at once", " and ".join(rtfx)),
        _note_diarization(subject, endpoint.endpoint),
        judge("several at once", "the text of one alone", differ, differing == 0),
    ]


def _note_diarization(subject: Subject, endpoint: Endpoint) -> Finding:
    """Note how long the diarization of a long recording takes, with nothing beside it."""
    seconds = DIARIZED_SECONDS if subject.on_cuda else subject.recording.size / SAMPLE_RATE
    name = f"diarization of {seconds:.0f} s"
    if endpoint.diarizer is None:
        return leave_out(name, "there is no diarizer")
    samples, started = lasting(subject.recording, seconds), time.perf_counter()
    work = partial(endpoint.diarizer.diarize, samples, SpeakerHints())
    found = endpoint.workers.diarization.compute(QueuedAudio(seconds), work).result()
    speakers = len({turn.speaker for turn in found.turns})
    return note(name, f"{time.perf_counter() - started:.1f} s, {speakers} speakers")


def _check_answer(settings: ModelSettings, answer: Mapping[str, Any]) -> Finding:
    """Check that the answer has words, and speakers if there is a diarizer."""
    words = answer["words"]
    speakers = {word["speaker"] for word in words if word.get("speaker")}
    wanted = settings.diarization_model is not None
    expected = "both" if wanted else "words, without a diarizer"
    found = f"{len(words)} words, {len(speakers)} speakers"
    fine = bool(words) and bool(speakers) == wanted
    return judge("words and speakers", expected, found, fine)


def check_log(warnings: Sequence[str]) -> list[Finding]:
    """Check that the endpoint logged no warning during all checks."""
    found = "; ".join(dict.fromkeys(warnings)) or "none"
    return [judge("warnings in the log", "none", found, not warnings)]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
