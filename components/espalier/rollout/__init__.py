"""The episode loop, the context of an episode, and the engines that sample tokens."""
