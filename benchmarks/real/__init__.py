"""Anybody's recordings through this project and the engines people use today."""
