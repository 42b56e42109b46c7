"""Whether known speakers are named, and strangers are not."""
