"""Cython's support code, which the other compiled modules import; only the extension has content (hatch_build.py)."""
