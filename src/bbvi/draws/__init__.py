"""Algorithms 1 and 2, "draw S samples from q": which groups, how many draws, and the factors of q as rows."""
