"""Traces of JAX functions, whatever they compute: run, rewrite and describe them."""
