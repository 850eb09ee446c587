"""`python -m bbvi`, the same as the command `bbvi`."""

from bbvi.command import main

if __name__ == "__main__":
    main(prog_name="bbvi")
