"""Decodes and checks what clients send: JSON, base64, languages, known speakers."""
