"""The answer to a request, as a JSON object and as files."""
