"""Numerical code that knows no model: random numbers by address, special functions, quantiles, loops, compiler options."""
