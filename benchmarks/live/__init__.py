"""Measures live sessions in real time: delay of words, word errors, and concurrent work."""
