"""Training of an encoder that follows one speaker where several talk at once."""
