"""Whisper checkpoints: loading a model and its assistant, special tokens, languages."""
