"""Spark itself: its session, the Java it runs on, its errors."""
