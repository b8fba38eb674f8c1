"""See `cli`."""

import sys

from pearl_simulator.emulator.cli import main

sys.exit(main())
