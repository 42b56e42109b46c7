"""How the server bears many clients at once."""
