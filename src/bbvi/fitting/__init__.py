"""Algorithms 1 and 2: steps, stopping rules and the loop around them; start with `fit`, `run` and `loop`."""
