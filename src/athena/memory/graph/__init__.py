"""The knowledge graph: entities, observations, relations."""
