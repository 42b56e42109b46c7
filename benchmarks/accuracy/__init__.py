"""How right the answers are: words, times and speakers of synthetic dialogues with known truth."""
