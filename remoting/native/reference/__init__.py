"""The compiled modules' functions in plain Python."""
