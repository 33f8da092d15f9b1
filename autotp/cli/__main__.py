"""`python -m autotp.cli`, and with it `torchrun -m autotp.cli`."""

from .group import main

main()
