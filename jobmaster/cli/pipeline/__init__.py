"""``jobmaster pipeline``: one module per command; none is imported before it is named."""
