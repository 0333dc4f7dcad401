"""The pages for people: rendered on the server, readable without scripts, live with small scripts of their own."""
