"""Speech recognition: samples at 16 kHz in, timed text out.

This package is independent of HTTP and servers. The exported names are for the endpoint; the rest
is internal.
"""

from whosaid.asr.checkpoint.assistants import with_assistant, with_conditioning
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.fallback import with_thresholds
from whosaid.asr.engine.request import MAX_ROWS, DecodeOptions, Share
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS, Limits
from whosaid.asr.frontend.vad import VadOptions
from whosaid.asr.hotwords import HotWords
from whosaid.asr.listening import EarlyStart
from whosaid.asr.live_pass import Hypothesis, HypothesisWord, LivePass
from whosaid.asr.recogniser import (
    EngineCounts,
    EngineJob,
    EngineThread,
    Recogniser,
    Transcribed,
    stopped,
)
from whosaid.asr.transcriber import RecognitionCapabilities, Transcriber, start_transcriber
from whosaid.asr.transcription import DecodedWindow, Guess, Journal, Prior, Transcription
