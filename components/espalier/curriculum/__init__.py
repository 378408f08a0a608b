"""The choice of tasks that are worth sampling now, and self-play, which adds new ones."""
