"""Live sessions in real time: when words come, which words, and what else the machine can do."""
