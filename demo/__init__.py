"""The embedded default: small models and a conversation that run the whole path offline, and how
they were made.

Nothing that serves requests imports this package; it is data, with the scripts behind the data.
"""
