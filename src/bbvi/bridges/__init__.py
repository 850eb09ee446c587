"""Models that were written for another library, brought to bbvi."""
