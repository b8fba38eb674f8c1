"""Checks against what is not ours: real vLLM, and an independent replay of a disaggregated fleet."""
