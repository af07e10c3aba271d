"""Options with which Spark's Java processes take little processor time in short tests.

Local sessions have them already. The second compiler of Java would cost more than it gains.
"""

from __future__ import annotations

import os

from spark_jobs.errors import JavaNotFoundError
from spark_jobs.session.class_archive import find_archive, use_options
from spark_jobs.session.java import find_java


def quick_java() -> str:
    """Return the options."""
    try:
        archive = find_archive(find_java(os.environ))
    except JavaNotFoundError:
        archive = None
    return " ".join(["-XX:TieredStopAtLevel=1", *([] if archive is None else [use_options(archive)])])
