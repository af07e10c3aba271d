"""Find every difference between the catalog, the object store and the bytes."""

from maintenance.fsck.report import Difference, DifferenceKind, FsckReport
from maintenance.fsck.run import fsck

__all__ = ["Difference", "DifferenceKind", "FsckReport", "fsck"]
