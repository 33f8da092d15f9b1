"""Who computes together: the ranks of a group, as processes or as threads of one, their process groups, and starting them."""
