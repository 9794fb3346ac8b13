"""Operations as MCP tools, over stdio, socket and HTTP."""
