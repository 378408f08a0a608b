"""Which tasks are worth sampling now, and self-play, which adds new ones."""
