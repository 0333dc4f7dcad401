"""What the page about circuit breakers takes for granted: nothing."""
