"""Every family that transformers has, cut over simulated ranks and compared with the dense model: `make zoo`."""
