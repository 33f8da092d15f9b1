"""What a rank computes with its part of a layer."""
