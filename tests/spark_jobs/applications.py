"""Applications of `spark-submit`, one after the other in one Java: `<script> <argument>… -- <script> …`."""

from __future__ import annotations

import runpy
import sys
from itertools import groupby


def main(arguments: list[str]) -> None:
    """Each as `spark-submit` would run it; the first that fails is the last."""
    for is_border, command in groupby(arguments, key="--".__eq__):
        if is_border:
            continue
        sys.argv = list(command)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main(sys.argv[1:])
