"""How the demo models were made: speech is synthesised, so every word, time and speaker is known
exactly.

The one decision: `python -m demo.build` repeats everything from the grammar on two CPU cores,
without any data set.
"""
