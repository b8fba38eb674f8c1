"""How long it will take: steady state, the rest of a batch, and the next seconds."""
