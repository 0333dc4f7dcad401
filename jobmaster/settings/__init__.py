"""Configuration: one YAML file, the environment and the command line become one frozen ``ClusterSettings``.

``model`` has the structs, ``loader.load_settings`` reads a configuration. All other modules follow the structs of
``model`` by type, so a new field there needs no change elsewhere. Importing this package imports neither PyYAML nor the
loader.
"""
