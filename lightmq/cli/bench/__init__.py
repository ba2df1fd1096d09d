"""The command `bench`: a load, and what came of it."""
