"""Decodes the first window of a recording by itself, without drafts and with four a step.

    python -m examples.one_window demo/conversation.ogg

`drafts=None` lets the engine choose, and `torch.float64` excludes rounding.
"""

import sys
from pathlib import Path

import torch

from config import DEMO_MODELS
from whosaid.asr import Checkpoint, DecodeOptions, Transcriber, load_whisper, with_assistant
from whosaid.asr.engine.request import Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.audio.decode import AudioLimits, decode_audio


def main(recording: str) -> None:
    models = load_whisper(Checkpoint(f"{DEMO_MODELS}/asr"), torch.device("cpu"), torch.float32)
    transcriber = Transcriber(with_assistant(models, Checkpoint(f"{DEMO_MODELS}/assistant")))
    samples = decode_audio(Path(recording).read_bytes(), 16_000, AudioLimits(7200, 2**29)).samples
    schedule = Schedule(samples, transcriber.detect_speech(samples), limit=30 * 16_000)
    window, prompt = schedule.ready()[0], models.special_tokens.prompt("en", "transcribe", True)
    for drafts in (0, 4):
        with transcriber.engine.session(DecodeOptions(assisted=True, drafts=drafts)) as session:
            session.add([Request(window, schedule.samples(window), prompt)])
            while not session.done:
                for _, result in session.step():
                    print(models.tokenizer.decode([*result.tokens], decode_with_timestamps=True))
                    print(f"{result.avg_logprob=:.3f} {result.no_speech_prob=:.3f}")
            print(session.stats)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit(__doc__)
    main(sys.argv[1])
