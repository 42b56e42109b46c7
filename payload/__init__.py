"""What the body of a request is read with."""
