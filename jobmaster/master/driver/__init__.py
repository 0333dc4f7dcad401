"""PostgreSQL itself: connections, errors, SQL texts, batches, COPY."""
