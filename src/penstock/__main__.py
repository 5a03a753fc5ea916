"""`python -m penstock`: the command line."""

import sys

from penstock.cli import main

sys.exit(main())
