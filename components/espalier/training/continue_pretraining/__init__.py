"""continue_pretraining: next-token training on texts of agent behaviour."""
