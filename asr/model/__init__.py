"""Whisper's encoder and decoder over a checkpoint's weights, the decoder's caches, and the kernels
they run on a CPU.
"""
