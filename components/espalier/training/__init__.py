"""Training: the pre-stage, the warm start, and reinforcement learning."""
