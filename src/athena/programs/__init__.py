"""Programs of agents: run them in the sandbox, store their runs, go on after an approval; skills and workspaces."""
