"""Algorithms 1 and 2: steps, stopping rules and the loop around them."""
