"""`python -m wholestep`."""

from wholestep.cli.main import main

if __name__ == "__main__":
    main()
