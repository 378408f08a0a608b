"""Questions from formal queries, and a teacher's trajectories that answer some of them."""
