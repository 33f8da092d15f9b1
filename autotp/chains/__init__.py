"""Chain rules: what is worth cutting. They propose; inference proves; the planner chooses."""
