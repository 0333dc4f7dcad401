"""The data pipeline on Spark: a leaf, nothing of the cluster needs it."""
