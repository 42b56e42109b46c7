"""Whisper's encoder and decoder over a checkpoint's weights, KV caches, and kernels for CPUs."""
