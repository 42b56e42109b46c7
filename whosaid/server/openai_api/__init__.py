"""OpenAI's audio API on the same endpoint, as its SDK uses it.

A field with an unsupported value is refused by name. A field without effect here is ignored, and
named in the answer's warnings.
"""
