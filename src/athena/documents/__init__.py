"""Files and folders as memories: read, cut into pieces, kept up to date."""
