"""`python -m demo.build [STEP ...]`: makes everything in the demo again, or only some of its steps.

The one decision: every step keeps its work under `build/demo` and takes up there what was
interrupted; a finished step costs seconds, so the whole is one command whatever was done before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from demo.build import asr, assistant, conversation, evaluate, pipeline
from demo.build.checksums import write_checksums
from demo.build.corpus import SHARD_CLIPS, build_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "demo"
CORPUS, CLIPS = WORK / "corpus", 17_000
DEMO = REPOSITORY / "demo"
MAIN, ASSISTANT, DIARIZATION = (
    DEMO / "models" / name for name in ("asr", "assistant", "diarization")
)


def speech() -> None:
    """Speak the training corpus: about twenty minutes."""
    for done, path in enumerate(build_corpus(CORPUS, CLIPS), 1):
        print(f"{path.name}, {done} of {CLIPS // SHARD_CLIPS}", flush=True)


def recogniser() -> None:
    """Train the recogniser: about fifty minutes."""
    asr.build(MAIN, CORPUS, WORK / "asr.state")
    write_checksums(MAIN)


def drafter() -> None:
    """Distil the assistant: twenty minutes."""
    assistant.build(ASSISTANT, MAIN, CORPUS, WORK / "assistant.state")
    write_checksums(ASSISTANT)


def figures() -> None:
    """Print what the model cards quote."""
    for line in evaluate.evaluate(MAIN, ASSISTANT):
        print(line, flush=True)


STEPS: dict[str, Callable[[], None]] = {
    "speech": speech,
    "asr": recogniser,
    "assistant": drafter,
    "diarization": lambda: pipeline.build(DIARIZATION, WORK),
    "conversation": lambda: conversation.build(DEMO),
    "evaluate": figures,
}


def main() -> None:
    """Run the steps that are named, or all, in their order."""
    parser = argparse.ArgumentParser(prog="python -m demo.build", description=__doc__)
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all where none is named"
    )
    wanted = parser.parse_args().steps
    if unknown := set(wanted) - set(STEPS):
        parser.error(f"no step is called {', '.join(sorted(unknown))}")
    WORK.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    for name, step in STEPS.items():
        if not wanted or name in wanted:
            print(f"== {name}", flush=True)
            step()


if __name__ == "__main__":
    main()
