"""New questions from failed ones: the pattern of a failure, varied over the knowledge graph."""
