"""Models and recordings that tests and benchmarks share; nothing of the endpoint imports it."""
