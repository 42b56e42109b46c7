"""Batched decoding: requests in, tokens out."""
