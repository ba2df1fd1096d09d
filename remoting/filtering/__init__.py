"""Which messages somebody wants: tags, SQL92, topic filters, keys and times, judged over raw records."""
