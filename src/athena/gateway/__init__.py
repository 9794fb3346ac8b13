"""The gateway to other MCP servers: a person configures and approves them, then programs call their tools."""
