"""The demo: a whole cluster over real work, with crashes, and its books checked against a plain loop."""
