"""The `siltstone` command as an application of `spark-submit`, whose session and configuration it uses.

    spark-submit --master … deploy/spark_submit.py compact --once --catalog … --object-store …

Siltstone must be installed in the Python of the driver and of the executors.
"""

from siltstone.cli import main

if __name__ == "__main__":
    main()
