"""OpenAI's audio API over the same service: what its SDK sends, and what it expects back.

The one decision: a field that cannot be served is refused by its name. Nothing that a client asks
for is ignored silently.
"""
