"""A data directory read from outside while another process writes it. The door is `store.AttachedStore`."""
