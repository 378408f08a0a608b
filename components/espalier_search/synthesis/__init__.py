"""Training data: questions, demonstrations, agent texts, and the task proposers of self-play."""
