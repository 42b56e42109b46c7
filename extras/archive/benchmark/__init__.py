"""The cost of an archive on a cluster, compared with a plain loop over its files."""
