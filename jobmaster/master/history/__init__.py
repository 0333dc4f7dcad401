"""History that leaves the master, and rows by the million: archive, export, bulk insert, other databases."""
