"""Measures diarization, words' speakers and known speakers on real conversations."""
