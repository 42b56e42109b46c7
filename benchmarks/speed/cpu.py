"""What costs how much on a CPU, where the engine's choices rest on it: `scripts/bench cpu`.

Three questions. How much longer than one position does attention to the audio take for several, as
drafts have them? How much longer does an encoder take for many windows together than for one after
the other? And how much longer does decoding take while another thread, which has computed before,
rests? The one decision: each is a ratio of the engine's own pieces in the same process and turns;
what they gain beside torch's is asked elsewhere (`products`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest import mock

import torch

from asr.checkpoint.loading import WhisperModels
from asr.engine.engine import DecodeEngine, DecodeOptions
from asr.model.cpu_kernels import attention
from asr.model.encoder import Encoder
from benchmarks.report import PAGES, RESULTS, listed, save, settings, table
from benchmarks.speed.engines import decode
from benchmarks.speed.kernels import CPU, CROWD, FRAMES, HEADS, across
from benchmarks.speed.recordings import cut, recording
from benchmarks.timing import Action, in_turns, ratio, seconds_of
from testing.model_pairs import BASE, demo_pair, random_pair

POSITIONS = (2, 4, 7, 11)
ROWS = {"demo": (1, 24), "base": (1, 24), "large-v3": (1, 4)}
TOGETHER = 16
TURNS = 9
PAIRS: dict[str, Callable[[torch.device, torch.dtype], WhisperModels]] = {
    "demo": demo_pair,
    "base": partial(random_pair, BASE, 0.05),
}
MOST_TOKENS = 60  # random weights never end


def positions(turns: int) -> Iterator[list[str]]:
    """Attention to 30 s of audio: times of several positions over that of one, a row a model and
    number of rows.
    """
    for name, (heads, size) in HEADS.items():
        for rows in ROWS[name]:
            shape = (rows, heads, FRAMES, size)
            count = max(1, int(CROWD / (8 * rows * heads * FRAMES * size)))
            heard = [(across(torch.randn(shape)), across(torch.randn(shape))) for _ in range(count)]

            def asked(
                query: torch.Tensor, heard: Sequence[tuple[torch.Tensor, torch.Tensor]] = heard
            ) -> Action:
                return lambda: [attention(query, *each) for each in heard]

            actions = {
                str(many): asked(torch.randn(rows, heads, many, size)) for many in (1, *POSITIONS)
            }
            in_turns(actions, 1, CPU)
            seconds = in_turns(actions, turns, CPU)
            cells = [str(ratio(seconds[str(many)], seconds["1"])) for many in POSITIONS]
            yield [f"{name}, {rows} x {heads} heads of {size}", *cells]


def encoders(turns: int) -> Iterator[list[str]]:
    """Encoding windows together over encoding them one by one, a row a model."""
    windows = cut(recording(TOGETHER * 30))[:TOGETHER]
    for name, make in PAIRS.items():
        hearing = Encoder(make(CPU, torch.float32))

        def one_by_one(hearing: Encoder = hearing) -> object:
            return hearing.hear(windows, drafted=False)

        def together(hearing: Encoder = hearing) -> object:
            with mock.patch("asr.model.encoder.at_once", lambda windows, device: windows):
                return hearing.hear(windows, drafted=False)

        actions: dict[str, Action] = {"together": together, "one by one": one_by_one}
        in_turns(actions, 1, CPU)
        seconds = in_turns(actions, turns, CPU)
        yield [name, str(ratio(seconds["together"], seconds["one by one"]))]


def threads(turns: int) -> Iterator[list[str]]:
    """Decoding a minute at batch 1 beside a thread that has computed and rests, over decoding it
    alone.
    """
    windows, options = cut(recording(60)), DecodeOptions(batch_size=1)
    for name, make in PAIRS.items():
        engine = DecodeEngine(make(CPU, torch.float32))
        answer = partial(decode, engine, windows, options, MOST_TOKENS)
        answer()
        alone, beside = [], []
        for _ in range(turns):
            alone.append(seconds_of(answer, CPU))
            with ThreadPoolExecutor(1) as other:
                other.submit(answer).result()
                beside.append(seconds_of(answer, CPU))
        yield [name, str(ratio(beside, alone))]


@torch.inference_mode()
def _main() -> None:
    parser = argparse.ArgumentParser(
        description="Time pieces of the engine beside each other on a CPU."
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args().turns
    asked, encoded = list(positions(turns)), list(encoders(max(3, turns // 3)))
    crowded = list(threads(turns))
    facts = {
        **settings(("torch", "transformers", "numpy")),
        "turns": turns,
        "bytes that take turns": int(CROWD),
    }
    save(
        RESULTS / "cpu.json",
        {"settings": facts, "positions": asked, "encoders": encoded, "threads": crowded},
    )
    page = "\n\n".join(
        (
            "# What costs how much on a CPU",
            "Ratios of times, float32, medians of turns in one process with a 95% bootstrap interval. Written by "
            "`scripts/bench cpu`; `benchmarks/cpu.py` says how.",
            "## Attention to 30 s of audio, several positions over one",
            table(("rows x heads", *map(str, POSITIONS)), asked),
            f"## Encoding {TOGETHER} windows together over one by one",
            table(("models", "ratio"), encoded),
            "## Decoding beside a thread that has computed and rests, over decoding alone",
            table(("models", "ratio"), crowded),
            "## Settings",
            listed(facts),
        )
    )
    path = PAGES / "cpu.md"
    path.write_text(page + "\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    _main()
