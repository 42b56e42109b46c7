"""Trains a Whisper encoder to follow one speaker where several talk at once."""
