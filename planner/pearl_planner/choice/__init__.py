"""Which shape, and whether to change to it: situation, candidates, gates, costs, hysteresis."""
