"""`python -m torchmlx` is the command `torchmlx`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
