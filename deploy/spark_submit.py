"""The `siltstone` command as an application of `spark-submit`, whose session and settings it takes.

    spark-submit --master … deploy/spark_submit.py compact --once --catalog … --object-store …

Siltstone is installed where the driver runs, and where the executors do.
"""

from siltstone.cli import main

if __name__ == "__main__":
    main()
