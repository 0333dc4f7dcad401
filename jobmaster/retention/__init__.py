"""What may leave the master, and how: dropped and archived history, and jobs that move to another master."""
