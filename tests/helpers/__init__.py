"""Stand-ins, oracles, servers and commands that only tests use, without annotations. Benchmarks and
extras share `tests.support` with the tests."""
