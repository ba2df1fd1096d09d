"""Which records each queue holds: a small shared tail plus immutable sorted runs. The door is `index.QueueIndex`."""
