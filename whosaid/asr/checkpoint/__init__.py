"""Loads Whisper checkpoints, their drafters and their special tokens."""
