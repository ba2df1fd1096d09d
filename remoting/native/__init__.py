"""Compiled code of all sides of the wire, and the plain Python that says what it does."""
