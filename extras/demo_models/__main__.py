"""`python -m extras.demo_models [STEP ...]`: makes everything in `demo/`, or runs only the named
steps. Speech is kept under `build/demo`.
"""

from __future__ import annotations

import subprocess
import sys

import torch

from config import DEMO_MODELS, REPOSITORY
from extras.demo_models import assistant, conversation, evaluate, pipeline, recogniser
from extras.demo_models.corpus import build_corpus, build_recordings, load_corpus
from extras.demo_models.whisper import write_checksums

WORK = REPOSITORY / "build" / "demo"
CORPUS, CLIPS = WORK / "corpus.pickle", 17_000
RECORDINGS, RECORDING_COUNT = WORK / "recordings", 432
MAIN, ASSISTANT, DIARIZATION, HEADS = (
    DEMO_MODELS / name for name in ("asr", "assistant", "diarization", "medusa")
)


def train_heads() -> None:
    """Train Medusa heads with the command for any Whisper."""
    build_recordings(RECORDINGS, RECORDING_COUNT)
    model, recordings, heads = (
        str(folder.relative_to(REPOSITORY)) for folder in (MAIN, RECORDINGS, HEADS)
    )
    options = ["--model", model, "--recordings", recordings, "--output-dir", heads]
    plan = ["--heads", "4", "--layers", "3", "--epochs", "4"]
    command = [sys.executable, "-m", "extras.medusa", "train", *options, *plan]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    write_checksums(HEADS)


def print_figures() -> None:
    evaluate.print_recognition(MAIN, ASSISTANT)
    evaluate.print_diarization(DIARIZATION)


# On two cores the steps take 20, 50, 20 and 30 minutes, hours, and one and ten minutes.
STEPS = {
    "speech": lambda: build_corpus(CORPUS, CLIPS),
    "asr": lambda: recogniser.build(MAIN, load_corpus(CORPUS)),
    "assistant": lambda: assistant.build(ASSISTANT, MAIN, load_corpus(CORPUS)),
    "medusa": train_heads,
    "diarization": lambda: pipeline.build(DIARIZATION),
    "conversation": lambda: conversation.build(DEMO_MODELS.parent),
    "evaluate": print_figures,
}


def main() -> None:
    wanted = sys.argv[1:] or [*STEPS]
    if unknown := [name for name in wanted if name not in STEPS]:
        sys.exit(f"there is no step {unknown[0]}: {', '.join(STEPS)}")
    WORK.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    for name in wanted:
        print(f"== {name}", flush=True)
        STEPS[name]()


if __name__ == "__main__":
    main()
