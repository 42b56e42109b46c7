"""Measures every number in README.md and docs/: speed, accuracy, diarization.

The benchmarks use the endpoint like its users; the endpoint does not import them.
"""
