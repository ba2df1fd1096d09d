"""The command line: one module per command, found by `application`."""
