"""What runs on a rank: collectives, parallel layers, programs, and a simulator of all ranks in one process."""
