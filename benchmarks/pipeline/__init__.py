"""The data pipeline, measured."""
