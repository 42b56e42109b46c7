"""Speech recognition: samples at 16 kHz in, timed text out.

This package is independent of HTTP and servers. The exported names are for the endpoint; the rest
is internal.
"""

from whosaid.asr.checkpoint.assistants import with_assistant, with_conditioning
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.fallback import with_thresholds
from whosaid.asr.engine.request import MAX_ROWS, DecodeOptions
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS, Limits
from whosaid.asr.frontend.vad import VadOptions
from whosaid.asr.listening import EarlyStart
from whosaid.asr.live_pass import Hypothesis, HypothesisWord, LivePass
from whosaid.asr.output.chunks import ChunkReader
from whosaid.asr.recogniser import EngineCounts, Job, Progress, Recogniser, stopped
from whosaid.asr.transcriber import Transcriber, start_transcriber
from whosaid.asr.transcription import Guess, Prior, Transcription

__all__ = [
    "DEFAULT_LIMITS",
    "MAX_ROWS",
    "Checkpoint",
    "ChunkReader",
    "DecodeOptions",
    "EarlyStart",
    "EngineCounts",
    "Guess",
    "Hypothesis",
    "HypothesisWord",
    "Job",
    "Limits",
    "LivePass",
    "Prior",
    "Progress",
    "Recogniser",
    "Transcriber",
    "Transcription",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModels",
    "load_whisper",
    "start_transcriber",
    "stopped",
    "with_assistant",
    "with_conditioning",
    "with_thresholds",
]
