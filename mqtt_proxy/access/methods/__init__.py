"""How a client proves who it is: one file per method, and the chain of them."""
