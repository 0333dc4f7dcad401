"""A cluster in the memory of one process: the checks, receipts and outcomes of the product over rows in a dictionary."""
