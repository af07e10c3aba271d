"""`python -m siltstone` is the `siltstone` command."""

from siltstone.command import main

if __name__ == "__main__":
    main()
