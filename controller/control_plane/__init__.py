"""What the leading controller does for broker groups: heartbeats in, elections and pushed roles out."""
