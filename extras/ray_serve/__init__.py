"""The server on Ray Serve, for more than one device."""
