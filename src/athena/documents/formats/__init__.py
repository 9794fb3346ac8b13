"""Read the text and structure of files of many formats: the standard library and pypdfium2, inside the jail."""
