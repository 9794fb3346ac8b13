"""Programs of agents: run in the sandbox with the operations at hand, recorded, and gone on with after an approval."""
