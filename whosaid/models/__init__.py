"""Where a command's models come from: options, environment, this repository, or a download."""
