"""`python -m autotp` is `autotp`, and `torchrun -m autotp` its ranks."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="autotp")
