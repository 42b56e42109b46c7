"""What a client gets: the JSON object and the files in it."""
