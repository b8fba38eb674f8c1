"""The worker: the agent (PID 1 of a worker container) and what it needs to run a vLLM engine.

Read from `main` inwards: `main` wires the shells, `api` speaks HTTP, `supervisor` runs the loop, `machine` decides.
`engine_env`, `models` and `measure` are command-line tools for machines without a GPU.
"""
