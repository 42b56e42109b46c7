"""`python -m extras.demo_models [STEP ...]`: builds the demo again, or only the named steps.

Every step keeps its state under `build/demo` and resumes from it. A finished step takes seconds, so
the same command starts, resumes and checks a build.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

import torch

from config import REPOSITORY
from extras.demo_models import assistant, conversation, evaluate, pipeline, recogniser
from extras.demo_models.checksums import write_checksums
from extras.demo_models.corpus import SHARD_CLIPS, build_corpus
from extras.demo_models.recordings import build_recordings

WORK = REPOSITORY / "build" / "demo"
CORPUS, CLIPS = WORK / "corpus", 17_000
DEMO = REPOSITORY / "demo"
MAIN, ASSISTANT, DIARIZATION, HEADS = (
    DEMO / "models" / name for name in ("asr", "assistant", "diarization", "medusa")
)
RECORDINGS, RECORDING_COUNT = WORK / "recordings", 432
HEADS_PLAN = ("--heads", "4", "--layers", "3", "--epochs", "4")


def build_speech() -> None:
    """Synthesise the training corpus: about twenty minutes."""
    for done, path in enumerate(build_corpus(CORPUS, CLIPS), 1):
        print(f"{path.name}, {done} of {CLIPS // SHARD_CLIPS}", flush=True)


def build_asr() -> None:
    """Train the speech recognition model: about fifty minutes."""
    recogniser.build(MAIN, CORPUS, WORK / "asr.state")
    write_checksums(MAIN)


def build_assistant() -> None:
    """Distil the assistant: twenty minutes."""
    assistant.build(ASSISTANT, MAIN, CORPUS, WORK / "assistant.state")
    write_checksums(ASSISTANT)


def build_heads() -> None:
    """Record the training voices and train the Medusa heads on them: half an hour."""
    for done in build_recordings(RECORDINGS, RECORDING_COUNT):
        if done % 50 == 0:
            print(f"{done} of {RECORDING_COUNT} recordings", flush=True)
    model, recordings, heads = (
        str(folder.relative_to(REPOSITORY)) for folder in (MAIN, RECORDINGS, HEADS)
    )
    options = ["--model", model, "--recordings", recordings, "--output-dir", heads, *HEADS_PLAN]
    command = [sys.executable, "-m", "extras.medusa", "train", *options]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    write_checksums(HEADS)


def print_figures() -> None:
    """Print the figures of the model cards."""
    for line in evaluate.evaluate(MAIN, ASSISTANT):
        print(line, flush=True)


STEPS: dict[str, Callable[[], None]] = {
    "speech": build_speech,
    "asr": build_asr,
    "assistant": build_assistant,
    "medusa": build_heads,
    "diarization": lambda: pipeline.build(DIARIZATION, WORK),
    "conversation": lambda: conversation.build(DEMO),
    "evaluate": print_figures,
}


def main() -> None:
    """Run the named steps, or all of them, in order."""
    parser = argparse.ArgumentParser(prog="python -m extras.demo_models", description=__doc__)
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; default: all"
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
