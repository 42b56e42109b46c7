"""Speaker diarization (who speaks when): pyannote's pipeline, and faster embeddings for it."""
