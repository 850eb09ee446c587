"""Functions that JAX cannot trace: call them, and learn by moving latents what their terms read."""
