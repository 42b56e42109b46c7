"""Reads the command line of every command, and starts the command.

This package and the modules with a command's options import only the standard library, because a
script reads its arguments with any Python that it finds, before anything is installed.
"""
