"""Training: the pre-stage, the warm start, and GRPO."""
