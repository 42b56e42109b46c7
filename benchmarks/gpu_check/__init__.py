"""`scripts/gpu-check`: checks load, CUDA graphs, text, speed and memory on this machine.

Each check is one line of a report, with the expected and the measured value. A check that this
machine cannot run has a line with the reason.
"""
