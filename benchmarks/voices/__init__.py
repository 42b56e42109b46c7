"""Who speaks when, who said what and who is known, in real conversations with real weights."""
