"""From tokens to a transcript: segments, words, word times, chunks."""
