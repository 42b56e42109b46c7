"""Trains an encoder to follow one of several speakers who talk at once."""
