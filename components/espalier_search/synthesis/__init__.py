"""Questions from formal queries, demonstrations, agent texts, and proposers of self-play."""
