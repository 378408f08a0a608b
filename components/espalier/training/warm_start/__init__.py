"""warm_start: masked SFT on teacher trajectories."""
