"""The checks of the machine, of loading, of texts and of requests.

Expected values follow from the code (equal tokens) or are wide bounds defined here, never another
machine's figures.
"""

from __future__ import annotations

import base64
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

import joblib
import torch
import transformers
from rapidfuzz.distance import Levenshtein

from benchmarks.decoding import decode
from benchmarks.gpu_check.memory import GB, footprint
from benchmarks.gpu_check.page import Finding, judge, leave_out, note
from benchmarks.gpu_check.subject import CONVERSATION, Subject
from benchmarks.report import settings as machine_settings
from config import REPOSITORY, ModelSettings
from whosaid.asr.engine.request import DecodeOptions, DecodeResult, Request

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
    "beam": DecodeOptions(batch_size=8, num_beams=5, timestamps=False),
    "sampled": DecodeOptions(batch_size=LARGE_BATCH, temperature=0.6),
}

AT_ONCE = 4  # requests
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
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    return [
        note("GPU", f"{properties.name}, compute capability {capability}"),
        note("driver", f"{driver[0] if driver else 'unknown'}; torch is built for {built}"),
        judge("memory free before load", "at least 90%", found, free >= 0.9 * total),
        judge("cuDNN's attention", "off", "on" if cudnn else "off", not cudnn),
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
        _note_memory(subject),
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


def _note_memory(subject: Subject) -> Finding:
    """Note the device's memory by what holds it."""
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
        "beams, live rows and others": allocated - size.with_rows(rows),
        "unused by torch": reserved - allocated,
        "graphs and CUDA's context": total - free - reserved,
        "free": free,
    }
    return note(name, ", ".join(f"{part} {held / GB:.2f}" for part, held in parts.items()) + " GB")


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
    return [*findings, _check_precision(subject, different, plain)]


def _fill_batch(windows: Sequence[Request]) -> list[Request]:
    """Return windows repeated under new numbers until there are enough for a large batch."""
    count = max(LARGE_BATCH, len(windows))
    return [replace(windows[key % len(windows)], key=key) for key in range(count)]


def _check_replay(subject: Subject, kind: str, run: Callable[[], Texts]) -> Finding:
    """Check that graphs and eager passes give equal tokens."""
    name, runner = f"graphs against eager, {kind} steps", subject.graphs
    if runner is None:
        return leave_out(name, NO_GPU if not subject.on_cuda else "graphs are off")
    replayed = run()
    with runner.paused():
        eager = run()
    differing = _count_differing(replayed, eager)
    found = f"{differing} of {len(eager)} windows differ"
    return judge(name, "equal tokens", found, differing == 0)


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
    windows = f"{_count_differing(found, expected)} of {len(found)} windows"
    return judge(
        check,
        f"at most {allowed} words differ (rounding)",
        f"{errors} of {len(reference)} words differ, {windows}",
        errors <= allowed,
    )


def _check_precision(subject: Subject, windows: Sequence[Request], plain: Texts) -> Finding:
    """Compare half precision's text of the first windows with float32's on the CPU."""
    name = "text in float16 against float32 on the CPU"
    if subject.dtype != torch.float16:
        return leave_out(name, f"{NO_GPU}: it computes in {_short(subject.dtype)}")
    weights = subject.transcriber.models.model.named_parameters()
    parameters = sum(weight.numel() for _, weight in weights)
    few = subject.quick or parameters > LARGE_PARAMETERS
    chosen = windows[:FEW_WINDOWS] if few else windows
    exact, _ = decode(subject.reference(), chosen, GREEDY)
    half = {number: plain[number] for number in exact}
    return _compare_texts(subject, name, exact, half)


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
    audio = base64.b64encode(CONVERSATION.read_bytes()).decode()
    seconds: list[float] = []

    def ask(_: object = None) -> dict[str, Any]:
        started = time.perf_counter()
        answer = endpoint({"inputs": audio, "parameters": {"return_timestamps": "word"}})
        seconds.append(time.perf_counter() - started)
        return answer

    first, _ = ask(), ask()
    later = seconds[1]
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(ask, range(AT_ONCE)))
    together = time.perf_counter() - started
    differing = sum(each["text"] != first["text"] for each in answers)
    return [
        judge(
            "first request",
            f"at most {FIRST_REQUEST_EXTRA:.0f} s more than later",
            f"{seconds[0]:.2f} s, later {later:.2f} s",
            seconds[0] <= later + FIRST_REQUEST_EXTRA,
        ),
        _check_answer(settings, first),
        note(
            f"RTFx of a request, and of {AT_ONCE} at once",
            f"{first['duration'] / later:.1f} and {AT_ONCE * first['duration'] / together:.1f}",
        ),
        judge(
            "several at once",
            "the text of one alone",
            f"{differing} of {AT_ONCE} texts differ",
            differing == 0,
        ),
    ]


def _check_answer(settings: ModelSettings, answer: Mapping[str, Any]) -> Finding:
    """Check that the answer has words, and speakers if there is a diarizer."""
    words = answer["words"]
    speakers = {word["speaker"] for word in words if word.get("speaker")}
    wanted = settings.diarization_model is not None
    return judge(
        "words and speakers",
        "both" if wanted else "words, without a diarizer",
        f"{len(words)} words, {len(speakers)} speakers",
        bool(words) and bool(speakers) == wanted,
    )


def check_log(warnings: Sequence[str]) -> list[Finding]:
    """Check that the endpoint logged no warning during all checks."""
    found = "; ".join(dict.fromkeys(warnings)) or "none"
    return [judge("warnings in the log", "none", found, not warnings)]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
