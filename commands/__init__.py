"""How every command of this project reads its command line.

Only the standard library is imported here, and by the modules that say which options a command
has: a script reads its arguments with whatever Python it finds, before anything is installed.
"""
