"""Messages to other systems, in the transaction of the application."""
