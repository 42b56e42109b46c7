"""`scripts/transcribe` and `scripts/demo`: recordings in, transcripts out, by models loaded here or
by a running server.
"""
