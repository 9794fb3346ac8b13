"""Tool search: rank tools for a request, by words and by vectors, and export them as a folder of stubs."""
