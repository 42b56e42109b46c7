"""OpenAI's audio API over the same endpoint: what its SDK sends, and what it expects back.

A field that cannot be served is refused by its name. Nothing that a client asks for is ignored
silently.
"""
