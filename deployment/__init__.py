"""What deploy.py reads and checks before anything is created: its command line, and what would
fail, or cost in vain, on a machine that is paid for.
"""
