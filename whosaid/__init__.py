"""The endpoint: recognition, diarization, audio, answers, server and commands."""
