"""The command line. `oncluster --help` names its parts; each part is one module of this package."""
