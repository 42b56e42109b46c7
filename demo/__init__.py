"""The embedded default: small models and a conversation that run the whole path offline, and how
they were made.

The one decision: nothing that serves requests imports this package; it is data, with the scripts
behind the data.
"""
