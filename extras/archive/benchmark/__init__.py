"""What an archive on a cluster costs beside a plain loop over its files."""
