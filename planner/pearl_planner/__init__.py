"""Pure decisions: facts in, plan out. No I/O, no clock, no randomness, no logging.

Reading order: `types` (facts and decisions), `plan` (the one decision), `workload` (what is learned), `engine` and
`prediction` (how long it takes), `choice` (candidates, gates, hysteresis), `fleet` (minimal change, safe order),
`explain`.
"""
