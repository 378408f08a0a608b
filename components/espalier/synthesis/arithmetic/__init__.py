"""Mathematics tasks: arithmetic stories with a proven answer, a user's own problems, a teacher."""
