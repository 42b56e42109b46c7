"""OpenAI's audio API over the same endpoint: what its SDK sends, and what it expects back.

A field that asks for what cannot be served is refused by its name; one that means nothing here is
ignored, and named in the answer's warnings.
"""
