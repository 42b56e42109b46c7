"""Requests through `handler.py`, as the servers call it: the host's memory, several at once."""

from __future__ import annotations

import base64
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from benchmarks.gpu_check.page import Finding, judge, leave_out, note
from benchmarks.gpu_check.recording import CONVERSATION
from benchmarks.gpu_check.subject import Subject
from whosaid.timebase import SAMPLE_RATE

MB = 10**6
WARM, MEASURED, AT_ONCE = 4, 8, 4  # requests
QUICK_SECONDS = 5.0  # of audio a request, where a quick check has a CPU alone
# A request may leave so much behind, on average: half of what a thread's plans of cuDNN take.
GROWTH_BYTES = 5 * MB / 2


def check_requests(subject: Subject) -> list[Finding]:
    """Answers alone and beside others are the same, and requests leave no memory behind."""
    try:
        from handler import EndpointHandler
        from tests.support.audio_files import wav_file
    except ImportError as error:
        return [leave_out("all", f"handler.py cannot be imported ({error})")]
    endpoint = EndpointHandler(settings=subject.settings, serves=False)
    quick = subject.quick and not subject.on_cuda
    heard = subject.recording.lasting(QUICK_SECONDS).samples
    file = wav_file(heard, SAMPLE_RATE) if quick else CONVERSATION.read_bytes()
    body = {"inputs": base64.b64encode(file).decode(), "parameters": {}}
    count = 1 if subject.quick else WARM
    first = [_text(endpoint(dict(body))) for _ in range(count)][-1]
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    measured = 2 if subject.quick else MEASURED
    for _ in range(measured):
        endpoint(dict(body))
    gc.collect()
    growth = (process.memory_info().rss - before) / measured
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(endpoint, [dict(body) for _ in range(AT_ONCE)]))
    differing = sum(_text(each) != first for each in answers)
    found = f"{growth / MB:.1f} MB a request, over {measured}"
    memory = (
        judge("host memory", f"grows by at most {GROWTH_BYTES / MB:.1f} MB", found, _fine(growth))
        if subject.on_cuda and not subject.quick
        else note("host memory", found)
    )
    several = f"{differing} of {AT_ONCE} texts differ"
    return [memory, judge("several at once", "the text of one alone", several, differing == 0)]


def _fine(growth: float) -> bool:
    return growth <= GROWTH_BYTES


def _text(answer: dict[str, Any]) -> str:
    return str(answer["text"])
