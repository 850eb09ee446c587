"""Numbers with no model in them: random words by address, special functions, quantiles, and what XLA is asked to do."""
