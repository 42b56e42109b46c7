"""From samples to what a model reads: where somebody speaks, which windows to decode next, and
their spectrograms.
"""
