"""Batches of sinks: staged attempts, the ledger, and the requests about them."""
