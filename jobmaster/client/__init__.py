"""The producer's side: submit, wait, look up, cancel. ``cluster`` is the public face, ``sync`` the one without await."""
