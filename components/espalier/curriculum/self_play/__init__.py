"""Self-play: tasks that are posed between the phases of training, and which of them are kept."""
