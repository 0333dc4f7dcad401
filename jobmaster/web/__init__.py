"""The web server: pages for people, and the HTTP API for programs. Needs the extra ``web``."""
