"""Reader processes: ranges of records served beside the broker's own process. The door is `pool.ReaderPool`."""
