"""`python -m extras.archive` transcribes every recording of a large archive, on Ray.

What is done is told by what lies in the output place and by nothing else. So a run may end
anywhere, a worker may die anywhere, and the next one does what is missing.
"""
