"""The RL loop: `make rl-loop`, or `python -m examples.rl_loop`."""
