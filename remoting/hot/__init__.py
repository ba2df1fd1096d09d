"""Compiled helpers of both sides of the wire; `choice` says how rooms choose between their twins."""
