"""Section 3.1: which terms of log p(x, z) read which z_i, found by reading the function."""
