"""Decodes and checks clients' input: JSON, base64, languages, known speakers."""
