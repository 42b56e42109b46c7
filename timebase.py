"""The two clocks that everything is counted on: samples at 16 kHz, and Whisper's grid of 20 ms.

The one decision: these constants stand here once. Whisper's encoder makes one position of two mel
frames, which is one step of its timestamp tokens and one column of its cross-attention; the names
are those of openai/whisper's `audio.py`.
"""

from __future__ import annotations

SAMPLE_RATE = 16_000  # Hz; what Whisper, pyannote and the speech detector read
TOKENS_PER_SECOND = 50  # encoder positions, timestamp tokens
SAMPLES_PER_TOKEN = SAMPLE_RATE // TOKENS_PER_SECOND
TIME_PRECISION = 1 / TOKENS_PER_SECOND  # seconds between neighbouring timestamp tokens
