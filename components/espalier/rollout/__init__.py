"""Rolling episodes out: trajectories, the episode loop, and the engines that sample tokens."""
