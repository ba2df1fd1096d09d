"""Cython in pure-Python mode; each module raises ImportError until it is compiled."""
