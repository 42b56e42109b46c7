"""The answer to a request: who said what, as a JSON object and as files."""
