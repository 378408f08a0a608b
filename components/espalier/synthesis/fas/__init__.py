"""First-order action synthesis: actions planned and answers reasoned, nothing executed."""
