"""Makes a JAVA_HOME for Spark's master and workers while the image is built: `java_home.py DIRECTORY`.

The loads make one for themselves each time; servers that are started by `spark-class` need one in the image.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.etl.java_home import java_home_for_spark
from engine.keeper.java import find_java

if __name__ == "__main__":
    wanted = Path(sys.argv[1])
    home = java_home_for_spark(find_java(), wanted)
    if home != wanted:  # a whole Java, which Spark takes as it is
        wanted.symlink_to(home)
