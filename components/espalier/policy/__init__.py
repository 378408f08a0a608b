"""The policy: tokenizer and architecture of the embedded default, and loading a given model."""
