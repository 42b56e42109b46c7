"""`scripts/transcribe` and `scripts/demo`: transcribe recordings with models loaded here or by a
running server.
"""
