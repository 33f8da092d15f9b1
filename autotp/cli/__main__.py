"""`python -m autotp.cli`, and with it `torchrun -m autotp.cli`: the same as `-m autotp`."""

from .group import main

if __name__ == "__main__":
    main(prog_name="autotp")
