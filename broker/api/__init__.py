"""Request handlers: one file per family of request codes, wired together in `broker.api.router`."""
