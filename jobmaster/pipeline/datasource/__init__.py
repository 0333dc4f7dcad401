"""The cluster as a Spark data source: batch and stream reads, batch and stream writes."""
