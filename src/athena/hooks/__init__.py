"""Session hooks of coding agents: client, server, fallback."""
