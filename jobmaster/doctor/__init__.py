"""The checks of ``jobmaster doctor`` and of the page of problems."""
