"""Merge of the catalog's files and the store's objects by name, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from catalog.lifecycle.garbage import CatalogFile
    from catalog.open import Catalog
    from object_store.accounting import Purpose
    from object_store.interface import ObjectInfo, ObjectStore

L = TypeVar("L")
R = TypeVar("R")
FILES_AT_ONCE = 1000


def files_beside_objects(
    catalog: Catalog, store: ObjectStore, prefix: str, purpose: Purpose
) -> Iterator[tuple[CatalogFile | None, ObjectInfo | None]]:
    """Yield every file and every object below `prefix` once, with one LIST.

    Both sides are read page by page and belong to different moments: a caller that sees only one of a pair
    must look again before it concludes anything.
    """
    return merge_by_name(
        known_files(catalog, prefix),
        store.list(prefix, purpose=purpose),
        lambda file: file.object_name,
        lambda info: info.name,
    )


def known_files(catalog: Catalog, prefix: str) -> Iterator[CatalogFile]:
    """Yield the catalog's files below `prefix`, live and dead, by object name."""
    after = ""
    while page := catalog.garbage.known_files(prefix, after=after, limit=FILES_AT_ONCE):
        yield from page
        after = page[-1].object_name


def merge_by_name(
    left: Iterable[L], right: Iterable[R], left_name: Callable[[L], str], right_name: Callable[[R], str]
) -> Iterator[tuple[L | None, R | None]]:
    """Yield every name of either side once, in order of code points, with one element of each side in memory.

    Our object names are ASCII, so code points, UTF-8 bytes (S3) and PostgreSQL's "C" collation agree on the
    order.
    """
    lefts, rights = iter(left), iter(right)
    a, b = next(lefts, None), next(rights, None)
    while a is not None or b is not None:
        if b is None or (a is not None and left_name(a) < right_name(b)):
            yield a, None
            a = next(lefts, None)
        elif a is None or right_name(b) < left_name(a):
            yield None, b
            b = next(rights, None)
        else:
            yield a, b
            a, b = next(lefts, None), next(rights, None)
