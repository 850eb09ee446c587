"""Sections 2 and 3: estimators of the ELBO's gradient."""
