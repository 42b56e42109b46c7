"""Synthetic speech whose words, times and speakers are known, for tests and benchmarks."""
