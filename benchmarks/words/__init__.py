"""Names and terms that a client expects: how many are written, and what that costs."""
