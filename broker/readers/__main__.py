"""`python -m broker.readers`: one reader process, started by its broker and by nobody else."""

from broker.readers.process import main

if __name__ == "__main__":
    raise SystemExit(main())
