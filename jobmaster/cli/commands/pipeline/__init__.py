"""Commands that run the data pipeline."""
