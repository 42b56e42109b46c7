"""What a Whisper checkpoint is: its weights, its assistant's, its special tokens and its
languages.
"""
