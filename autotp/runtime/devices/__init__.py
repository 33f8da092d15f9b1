"""The device that a rank computes on, and the random numbers that are drawn there."""
