"""Engines: token ids in, token ids and their log-probs out; never text tokenised again."""
