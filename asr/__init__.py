"""Speech recognition: samples in, timed text out.

The one decision: everything here works on plain samples at 16 kHz and knows nothing of HTTP
requests or servers. What the handler needs is exported here; the rest is internal.
"""

from asr.checkpoint.assistants import with_assistant
from asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from asr.transcriber import Transcriber
from asr.transcription import Transcription, TranscriptionOptions

__all__ = [
    "Checkpoint",
    "Transcriber",
    "Transcription",
    "TranscriptionOptions",
    "WhisperModels",
    "load_whisper",
    "with_assistant",
]
