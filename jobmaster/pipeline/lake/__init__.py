"""History as verified Parquet files."""
