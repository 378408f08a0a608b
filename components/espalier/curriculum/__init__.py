"""Which tasks are worth sampling now."""
