"""What the compiled modules do, in plain Python."""
