"""Models, sounds and audio files that tests and benchmarks share; the endpoint never imports it."""
