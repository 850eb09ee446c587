"""Section 5.3: Metropolis-Hastings, the baseline of the paper, on the same models."""
