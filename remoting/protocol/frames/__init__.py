"""Frames of the remoting protocol: codes, commands, both header serialisations, length-prefixed frames."""
