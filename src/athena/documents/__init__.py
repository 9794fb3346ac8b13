"""Documents: read a file, split it into pieces, keep them."""
