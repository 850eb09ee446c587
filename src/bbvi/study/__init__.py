"""Section 5: the paper's empirical study, written with the public names of bbvi alone."""
