"""What diarization costs, beside pyannote.audio as it comes and beside speech recognition."""
