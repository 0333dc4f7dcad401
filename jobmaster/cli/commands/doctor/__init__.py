"""The command ``jobmaster doctor`` and its checks."""
