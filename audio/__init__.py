"""Untrusted audio files in, samples out."""
