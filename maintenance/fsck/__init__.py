"""Every difference between the catalog, the object store and the bytes; changes nothing."""

from maintenance.fsck.report import Difference, DifferenceKind, FsckReport
from maintenance.fsck.run import fsck

__all__ = ["Difference", "DifferenceKind", "FsckReport", "fsck"]
