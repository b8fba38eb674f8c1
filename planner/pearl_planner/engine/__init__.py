"""How long one engine step takes: the formula, the shipped tables, and fitting it to recorded steps."""
