"""Rolling episodes out: the episode loop, an episode's context, the engines that sample tokens."""
