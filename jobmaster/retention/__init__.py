"""What may leave the master, and how it leaves: the same for dropped and for archived history."""
