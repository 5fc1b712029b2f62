"""Options for programs of Java that end before they would have been optimized.

Compiling them again and again takes half of their processor time.
"""

QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
