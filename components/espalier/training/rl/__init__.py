"""`espalier train`: reinforcement learning over multi-turn episodes."""
