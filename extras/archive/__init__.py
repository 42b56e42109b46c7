"""`python -m extras.archive` transcribes every recording of a large archive, on Ray.

The files in the output folder alone decide which recordings are done. So a run may end and a worker
may die at any moment, and the next run does the recordings that are missing.
"""
