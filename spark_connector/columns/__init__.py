"""Records and batch records as Arrow columns, without a Python object per row."""
