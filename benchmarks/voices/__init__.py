"""Diarization, words with speakers and known speakers, on real conversations with real weights."""
