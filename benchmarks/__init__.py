"""Measurements behind every number in README.md and docs/: speed, accuracy, diarization.

They use the endpoint as its users do and are not part of it; nothing of the endpoint imports them.
"""
