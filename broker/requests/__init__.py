"""What every request handler begins with: rights and header fields."""
