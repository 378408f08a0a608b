"""The policy: the embedded default's tokenizer and model, loading a given model, its device."""
