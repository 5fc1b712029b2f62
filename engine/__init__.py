"""The node runtime of oncluster and everything that needs neither Airflow nor Spark."""

import sys

if sys.version_info < (3, 11, 4):
    from engine.timeouts import mend

    mend()
