"""`python -m broker.readers`: one reader process, started only by its broker."""

from broker.readers.process import main

if __name__ == "__main__":
    raise SystemExit(main())
