"""Trains the demo models on synthesised speech, whose words, times and speakers are known exactly.

`python -m demo.build` repeats everything from the grammar on two CPU cores. No data set is needed.
"""
