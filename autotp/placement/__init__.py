"""Which values vary over which mesh factor, and where collectives go."""
