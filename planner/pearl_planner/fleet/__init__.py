"""From a shape to workers: which shapes fit, minimal-change assignment, safe order of steps."""
