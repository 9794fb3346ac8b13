"""The server: HTTP, MCP, start and stop."""
