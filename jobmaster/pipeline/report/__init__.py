"""The report for people: one HTML file with its plots inside, no script from anywhere, no network."""
