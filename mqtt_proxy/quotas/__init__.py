"""What one client, one user, one address and the whole listener may use."""
