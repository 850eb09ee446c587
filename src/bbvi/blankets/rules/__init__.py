"""How single primitives pass on what they read."""
