"""Speech whose words and speakers are known, models, sounds and audio files. `whosaid` imports none
of it; tests, benchmarks and extras do."""
