"""Configuration: one YAML file, the environment and the command line become one frozen ``ClusterSettings``.

``model`` is the shape, ``loader.load_settings`` the only way in. Everything between follows the structs of ``model`` by
type, so a new field there needs no change elsewhere. Importing this package imports neither PyYAML nor the loader.
"""
