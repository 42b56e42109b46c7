"""From samples to model input: spans of speech, windows to decode, log-mel spectrograms."""
