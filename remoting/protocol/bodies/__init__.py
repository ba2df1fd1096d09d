"""Bodies of requests and answers, one module per group of requests that share a layout."""
