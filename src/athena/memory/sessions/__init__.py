"""Sessions: events, episodes, briefings, lessons."""
