"""Engines: they read token ids and return token ids with log-probs; text is never re-tokenised."""
