"""Speech recognition: samples in, timed text out.

Everything here works on plain samples at 16 kHz and knows nothing of HTTP requests or servers. What
the endpoint needs is exported here; the rest is internal.
"""

from asr.channels import recognise
from asr.checkpoint.assistants import with_assistant
from asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from asr.engine.fallback import with_thresholds
from asr.engine.request import DecodeOptions
from asr.engine.scheduler import DEFAULT_LIMITS, MAX_ROWS, Limits
from asr.frontend.vad import VadOptions
from asr.live_pass import Hypothesis, HypothesisWord, LivePass
from asr.options import TranscriptionOptions
from asr.recogniser import EngineCounts, Job, Progress, Recogniser, stopped
from asr.startup import start
from asr.transcriber import Transcriber
from asr.transcription import Transcription
from asr.window_decoding import Guess, HeardBefore

__all__ = [
    "DEFAULT_LIMITS",
    "MAX_ROWS",
    "Checkpoint",
    "DecodeOptions",
    "EngineCounts",
    "Guess",
    "HeardBefore",
    "Hypothesis",
    "HypothesisWord",
    "Job",
    "Limits",
    "LivePass",
    "Progress",
    "Recogniser",
    "Transcriber",
    "Transcription",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModels",
    "load_whisper",
    "recognise",
    "start",
    "stopped",
    "with_assistant",
    "with_thresholds",
]
