"""How the models and the conversation in `demo/` were made."""
