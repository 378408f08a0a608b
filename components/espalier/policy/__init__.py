"""The policy: tokenizer, rendering and architecture of the embedded default, or a given model."""
