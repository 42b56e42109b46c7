"""Compares this project with popular engines on your recordings."""
