"""The checks of the machine, of loading, of texts, of diarization and of requests.

Expected values follow from the code (equal tokens, equal turns) or are wide bounds defined here,
never another machine's figures.
"""

from __future__ import annotations

import base64
import gc
import math
import platform
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import joblib
import psutil
import torch
import transformers
from rapidfuzz.distance import Levenshtein

from benchmarks.decoding import decode
from benchmarks.gpu_check.page import Finding, judge, leave_out, note
from benchmarks.gpu_check.recording import CONVERSATION, Samples, lasting, spoken_words
from benchmarks.gpu_check.subject import BATCH, Subject, model_name
from config import ModelSettings
from whosaid.asr.engine.request import DecodeOptions, DecodeResult, Request
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Diarization, Diarizer, SpeakerHints
from whosaid.runtime.errors import loading
from whosaid.timebase import SAMPLE_RATE

# Results of windows by their keys.
Texts = Mapping[Hashable, DecodeResult]
NO_GPU = "this machine uses no GPU"
# The share of words that rounding may change, and the demo models' own word errors.
ROUNDED_SHARE, DEMO_ERROR_SHARE = 0.03, 0.15
# A model with more parameters is compared with the CPU only on the first windows.
LARGE_PARAMETERS, FEW_WINDOWS = 300_000_000, 2
QUICK_SECONDS = 20.0  # of audio in a quick check
# Seconds by which the first request may exceed a later one, because it prepares more shapes.
FIRST_REQUEST_EXTRA = 5.0
# Seconds by which the ends of turns may move if diarization runs beside recognition.
TURN_TOLERANCE = 0.05

LARGE_BATCH = 24  # windows decoded for comparison
GREEDY = DecodeOptions(batch_size=LARGE_BATCH, assisted=False, drafts=0)
OTHER_STEPS = {
    "beam": DecodeOptions(batch_size=BATCH, num_beams=5, timestamps=False),
    "sampled": DecodeOptions(batch_size=LARGE_BATCH, temperature=0.6),
}


# Requests in the check of host memory, and the mean bytes that a request may leak: half the size of
# a thread's cuDNN plans.
WARM, MEASURED, AT_ONCE = 4, 8, 4
GROWTH_MB = 2.5


def check_machine(settings: ModelSettings, device: torch.device | None) -> list[Finding]:
    """Check GPU, versions and threads; `device` is None if there is no usable one."""
    cuda, other = torch.version.cuda, transformers.__version__
    versions = f"torch {torch.__version__}, CUDA {cuda}, transformers {other}"
    findings = _check_gpu(device)
    findings.append(note("versions", f"{versions}, Python {platform.python_version()}"))
    usable, used = joblib.cpu_count(), torch.get_num_threads()
    expected = f"at most the {usable} processors of this process"
    findings.append(judge("threads of torch", expected, str(used), used <= usable))
    models = (settings.asr_model, settings.assistant_model, settings.diarization_model)
    findings.append(note("models", ", ".join(map(model_name, models))))
    variables = f"DEVICE={settings.device}, CUDA_GRAPHS={str(settings.cuda_graphs).lower()}"
    return [*findings, note("settings", variables)]


def _check_gpu(device: torch.device | None) -> list[Finding]:
    if device is None or device.type != "cuda":
        return [leave_out("GPU", NO_GPU)]
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    capability = f"{properties.major}.{properties.minor}"
    name = f"{properties.name}, compute capability {capability}"
    found = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB"
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    return [
        note("GPU", name),
        judge("memory free before load", "at least 90%", found, free >= 0.9 * total),
        judge("cuDNN's attention", "off", "on" if cudnn else "off", not cudnn),
    ]


def check_load(subject: Subject) -> list[Finding]:
    """Load the models; check seconds, precision, captured graphs and the first request."""
    subject.load()
    engine = subject.transcriber.engine
    device = engine.main.token_embeddings.device.type
    dtype = engine.models.product_dtype or engine.main.token_embeddings.dtype
    fine = (device, dtype) == (subject.device.type, subject.dtype)
    expected = f"{_short(subject.dtype)} on {subject.device.type}"
    return [
        note("load and warm-up", f"{subject.load_seconds:.1f} s"),
        judge("weights", expected, f"{_short(dtype)} on {device}", fine),
        *_check_graphs(subject),
        *_check_first_request(subject),
    ]


def _check_graphs(subject: Subject) -> list[Finding]:
    """Check that every planned graph was captured and gave the result of the eager pass."""
    names = ("graphs captured at load", "graphs against eager passes over noise")
    if not subject.on_cuda:
        return [leave_out(name, NO_GPU) for name in names]
    if not subject.settings.cuda_graphs:
        return [leave_out(name, "CUDA_GRAPHS turns them off") for name in names]
    runner = subject.graphs
    if runner is None:
        return [judge(name, "done", "graphs are off: see the log", fine=False) for name in names]
    captured, planned = runner.graph_count, runner.planned
    return [
        judge(names[0], str(planned), str(captured), captured >= planned),
        judge(names[1], "equal but for rounding", "equal", fine=True),
    ]


def _check_first_request(subject: Subject) -> list[Finding]:
    """Check that the first request takes little longer than a later one."""
    short = lasting(subject.recording, QUICK_SECONDS)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        subject.transcribe(short, BATCH, assisted=False)
        seconds.append(time.perf_counter() - started)
    first, later = seconds[0], min(seconds[1:])
    fine = first <= later + FIRST_REQUEST_EXTRA
    expected = f"at most {FIRST_REQUEST_EXTRA:.0f} s more than later"
    found = f"{first:.2f} s, later {later:.2f} s"
    return [judge(f"first request, {QUICK_SECONDS:.0f} s of audio", expected, found, fine)]


def check_texts(subject: Subject) -> list[Finding]:
    """Compare texts: graphs with eager steps, with and without drafts, float16 with float32, and
    all with the reference.
    """
    different, engine = subject.windows(), subject.transcriber.engine
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
    return [*findings, _check_precision(subject, different, plain), _check_truth(subject)]


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
    """Count windows and words that differ; only rounding may make them differ."""
    tokenizer = subject.transcriber.models.tokenizer

    def words(texts: Texts) -> list[str]:
        tokens = [list(texts[key].tokens) for key in expected]
        decoded = [str(tokenizer.decode(each, skip_special_tokens=True)) for each in tokens]
        return " ".join(decoded).split()

    differing = f"{_count_differing(found, expected)} of {len(found)} windows"
    return _compare_words(check, words(expected), words(found), differing)


def _compare_words(
    check: str, reference: Sequence[str], found: Sequence[str], also: str = ""
) -> Finding:
    """Check that rounding changes at most ROUNDED_SHARE of the words, or one word."""
    errors = Levenshtein.distance(reference, found)
    allowed = max(1, int(ROUNDED_SHARE * len(reference)))
    expected = f"at most {allowed} words differ (rounding)"
    text = f"{errors} of {len(reference)} words differ" + (f", {also}" if also else "")
    return judge(check, expected, text, errors <= allowed)


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


def _check_truth(subject: Subject) -> Finding:
    """Check the demo models' word errors; every word of their conversation is known."""
    name = "text against the reference"
    if not subject.is_demo:
        return leave_out(name, "only the demo's models know the demo's voices")
    truth = spoken_words()
    found = subject.transcribe(subject.recording, BATCH, assisted=False).text.split()
    errors = Levenshtein.distance(truth, found)
    share = errors / len(truth)
    expected = f"at most {DEMO_ERROR_SHARE:.0%} of the words wrong"
    return judge(name, expected, f"{share:.1%} of {len(truth)}", share <= DEMO_ERROR_SHARE)


def check_diarization(subject: Subject) -> list[Finding]:
    """Check diarization, alone and beside recognition, as in the endpoint."""
    model = subject.settings.diarization_model
    if model is None:
        return [leave_out("all", "DIARIZATION_MODEL names none")]
    try:
        import pyannote.audio  # noqa: F401
    except ImportError as error:
        return [leave_out("all", f"pyannote.audio cannot be imported ({error})")]
    with loading("DIARIZATION_MODEL", model.name):
        diarizer = load_diarizer(model.name, model.revision, subject.settings.token, subject.device)
    recording = subject.recording
    if subject.quick:
        recording = lasting(recording, QUICK_SECONDS)
    alone, seconds = _diarize(diarizer, recording)
    started = time.perf_counter()
    text = subject.transcribe(recording, BATCH, assisted=False).text
    recognition = time.perf_counter() - started
    started = time.perf_counter()
    with ThreadPoolExecutor(1, "diarization") as pool:
        running = pool.submit(_diarize, diarizer, recording)
        text_beside = subject.transcribe(recording, BATCH, assisted=False).text
        beside, _ = running.result()
    together = time.perf_counter() - started
    apart = _largest_difference(alone, beside)
    speakers = len({turn.speaker for turn in alone.turns})
    found = f"{len(alone.turns)} turns, {speakers} speakers, {seconds:.2f} s"
    times = f"together {together:.2f} s, one after the other {seconds + recognition:.2f} s"
    return [
        judge("alone", "turns", found, bool(alone.turns)),
        judge(
            "turns beside recognition",
            "the same",
            f"apart by {apart:.3f} s",
            apart <= TURN_TOLERANCE,
        ),
        _compare_words("text beside diarization", text.split(), text_beside.split()),
        note(f"time, {len(recording) / SAMPLE_RATE:.0f} s of audio", times),
    ]


def _diarize(diarizer: Diarizer, samples: Samples) -> tuple[Diarization, float]:
    started = time.perf_counter()
    return diarizer.diarize(samples, SpeakerHints()), time.perf_counter() - started


def _largest_difference(one: Diarization, other: Diarization) -> float:
    """Return the largest difference of turns' ends in seconds; infinite if their numbers differ."""
    if len(one.turns) != len(other.turns):
        return math.inf
    pairs = zip(one.turns, other.turns, strict=True)
    moved = [max(abs(a.start - b.start), abs(a.end - b.end)) for a, b in pairs]
    return max(moved, default=0.0)


def check_requests(subject: Subject) -> list[Finding]:
    """Check that concurrent answers equal single ones, and that requests leak no memory."""
    try:
        from handler import EndpointHandler
    except ImportError as error:
        return [leave_out("all", f"handler.py cannot be imported ({error})")]
    endpoint = EndpointHandler(settings=subject.settings, serves=False)
    body = {"inputs": base64.b64encode(CONVERSATION.read_bytes()).decode(), "parameters": {}}
    warm, measured = (1, 2) if subject.quick else (WARM, MEASURED)
    first = [endpoint(dict(body))["text"] for _ in range(warm)][-1]
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(measured):
        endpoint(dict(body))
    gc.collect()
    growth = (process.memory_info().rss - before) / measured / 1e6
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(endpoint, [dict(body) for _ in range(AT_ONCE)]))
    differing = sum(each["text"] != first for each in answers)
    found = f"{growth:.1f} MB a request, over {measured}"
    memory = note("host memory", found)
    if subject.on_cuda and not subject.quick:
        expected = f"grows by at most {GROWTH_MB} MB"
        memory = judge("host memory", expected, found, growth <= GROWTH_MB)
    several = f"{differing} of {AT_ONCE} texts differ"
    return [memory, judge("several at once", "the text of one alone", several, differing == 0)]


def check_log(warnings: Sequence[str]) -> list[Finding]:
    """Check that the endpoint logged no warning during all checks."""
    found = "; ".join(dict.fromkeys(warnings)) or "none"
    return [judge("warnings in the log", "none", found, not warnings)]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
