"""Finds a command's models: by options, environment, in this repository, or by a download."""
