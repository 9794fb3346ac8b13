"""Other MCP servers, whose tools join the catalog: configured by a person, pinned, and kept at arm's length."""
