"""The administration port: metrics, health and status pages over a small HTTP server."""
