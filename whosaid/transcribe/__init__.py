"""`scripts/transcribe` and `scripts/demo`: transcribe with models loaded here, or by a server."""
