"""The demo: `make demo`, or `python -m examples.demo`."""
