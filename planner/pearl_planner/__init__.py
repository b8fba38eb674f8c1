"""Pure decisions: facts in, plan out. No I/O, no clock, no randomness, no logging.

Reading order: `types` (facts and decisions), `plan` (the one decision), `predict` over `engine_model`, `profile`
and `queueing`, `choose` (hysteresis and gates), `assign` (minimal change), `steps` (safe order), `explain`.
"""
