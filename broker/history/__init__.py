"""History: scans of the parent queues and the HISTORY request."""
