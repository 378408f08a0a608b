"""train: group-relative policy optimisation over search episodes."""
