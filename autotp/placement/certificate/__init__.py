"""The certificate: the final program of a rank is legal, forward and backward, or it is refused."""
