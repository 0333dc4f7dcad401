"""Running handlers: order, slots, threads, worker processes, transactions, cancellation."""
