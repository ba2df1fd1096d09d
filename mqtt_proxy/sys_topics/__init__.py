"""The `$SYS` topics: values, load averages and the sessions that follow them."""
