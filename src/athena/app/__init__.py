"""Settings, the composition root, and the app that a process shares."""
