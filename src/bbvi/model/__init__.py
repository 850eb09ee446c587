"""Section 2 and Eq. 12: what a person writes (latents, functions, data), checked and bound together."""
