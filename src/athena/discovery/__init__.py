"""Finding tools by what they do: ranking, vectors, and the folder of stubs."""
