"""What the fleet is asked to do: distributions of turns, tokens and environment time, learned from records."""
