"""Batched decoding: requests in, tokens out. Sessions, scheduler, prefill, speculative steps,
runners, fallback.
"""
