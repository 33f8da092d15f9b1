"""Every family that transformers has, and those of other libraries where they are installed, cut over simulated ranks and
compared with the dense model: `make zoo`."""

from .libraries.operators import declare_operators

declare_operators()  # before transformers, which imports torchvision where there is one
