"""Trains Medusa heads for a Whisper that the endpoint can load, and evaluates them."""
