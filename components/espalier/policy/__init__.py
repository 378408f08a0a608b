"""The policy: tokenizer and architecture of the embedded default, loading a given model, and where
it computes."""
