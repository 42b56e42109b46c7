"""Measures the server under many concurrent clients."""
