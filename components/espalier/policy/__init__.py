"""The policy: the embedded default's tokenizer and model, named and given models, its device."""
