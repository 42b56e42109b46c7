"""Which models a command runs on, and where they come from: the command line, the environment, the
repository itself, or Whisper base and a pyannote pipeline, which are fetched once.
"""
