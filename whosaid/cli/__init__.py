"""Reads the command line of every command, and starts the command.

Only the standard library is imported here, and by the modules with a command's options: a script
reads its arguments with whatever Python it finds, before anything is installed.
"""
