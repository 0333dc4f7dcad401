"""The demo: a whole cluster over real work, with crashes; its results are compared with those of a plain loop."""
