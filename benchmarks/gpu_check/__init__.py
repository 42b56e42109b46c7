"""`scripts/gpu-check`: whether load, CUDA graphs, text, speed and memory are as expected here.

Each check is one line of a page with what was expected and what was found. A check that this
machine cannot run is a line too, with the reason.
"""
