"""Makes the models and the conversation in `demo/`."""
