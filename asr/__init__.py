"""Speech recognition: samples in, timed text out.

A package rather than one file because loading, windows, token rules and decoding change for
different reasons. The one decision: everything here works on plain samples at 16 kHz and knows
nothing of requests or servers.
"""
