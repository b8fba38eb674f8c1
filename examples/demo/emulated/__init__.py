"""Act 1: the real operator over a fleet of emulated H100 workers, on a recorded spot trace, faster than time."""
