"""Every difference between the catalog, the object store and the bytes; changes nothing."""

from planner.fsck.report import Difference, DifferenceKind, FsckReport
from planner.fsck.run import fsck

__all__ = ["Difference", "DifferenceKind", "FsckReport", "fsck"]
