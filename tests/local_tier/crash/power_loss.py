"""A file system that can lose power: only synced data is certain to survive.

It works on real files below a root, and keeps the state that a disk would have: the bytes of each file and
the names of each directory at their last sync. Later changes may survive in part:

- of a file's tail any piece, or zeros instead (the length was written, the data was not);
- of a directory's changes those up to some point, as in a file system's journal.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from local_tier.files.file_system import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from local_tier.files.file_system import FileLock, FileStatus, Mapping, OpenFile


@dataclass(eq=False)
class FileNode:
    content: bytes = b""
    """The bytes at the last sync."""
    attributes: dict[str, bytes] = field(default_factory=dict)
    """The attributes, which are in the journal before later bytes are synced."""
    synced_attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass(eq=False)
class DirectoryNode:
    names: dict[str, Node] = field(default_factory=dict)
    """The names at the last sync."""
    later: list[dict[str, Node]] = field(default_factory=list)
    """The names after each change since."""


Node: TypeAlias = "FileNode | DirectoryNode"


class _Mapping:
    def __init__(self, inner: Mapping, file: _File) -> None:
        self._inner = inner
        self._file = file

    @property
    def view(self) -> memoryview:
        return self._inner.view

    def sync(self) -> None:
        self._file.remember()

    def close(self) -> None:
        self._inner.close()


class _File:
    def __init__(self, inner: OpenFile, node: FileNode) -> None:
        self._inner = inner
        self._node = node

    @property
    def path(self) -> Path:
        return self._inner.path

    def size(self) -> int:
        return self._inner.size()

    def read_into(self, buffer: Buffer, position: int) -> int:
        return self._inner.read_into(buffer, position)

    def write(self, data: Buffer, position: int) -> None:
        self._inner.write(data, position)

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def allocate(self, size: int) -> None:
        self._inner.allocate(size)

    def sync(self) -> None:
        self.remember()

    def map(self, size: int) -> Mapping:
        return _Mapping(self._inner.map(size), self)

    def close(self) -> None:
        self._inner.close()

    def remember(self) -> None:
        content = bytearray(self._inner.size())
        self._inner.read_into(content, 0)
        self._node.content = bytes(content)
        self._node.synced_attributes = dict(self._node.attributes)


class PowerLossFileSystem:
    """Files below `root`, which must exist. Existing files count as synced."""

    def __init__(self, root: Path) -> None:
        self._real = RealFileSystem()
        self._root = root
        self._nodes: dict[int, Node] = {}
        self._lock = threading.RLock()  # directories are opened by several threads
        self._adopt(root)

    def lose_power(self, survivors: Path, seed: int | None = None) -> None:
        """Write the state after a power loss to `survivors`, a new directory.

        Without a seed, only synced data survives.
        """
        root = self._nodes[self._root.stat().st_ino]
        assert isinstance(root, DirectoryNode)
        live = {path.stat().st_ino: path for path in self._root.rglob("*") if path.is_file()}
        contents = {id(self._nodes[inode]): path.read_bytes() for inode, path in live.items()}
        chance = None if seed is None else random.Random(seed)
        self._write(root, survivors, contents, chance)

    def _write(
        self, node: Node, target: Path, contents: dict[int, bytes], chance: random.Random | None
    ) -> None:
        if isinstance(node, FileNode):
            target.write_bytes(_after_power_loss(node.content, contents.get(id(node), node.content), chance))
            choices = [node.synced_attributes, node.attributes]
            for name, value in (choices[0] if chance is None else chance.choice(choices)).items():
                self._real.set_attribute(target, name, value)
            return
        target.mkdir()
        names = node.names if chance is None else chance.choice([node.names, *node.later])
        for name, child in names.items():
            self._write(child, target / name, contents, chance)

    def _adopt(self, path: Path) -> None:
        node = self._node(path)
        if isinstance(node, DirectoryNode):
            for child in path.iterdir():
                self._adopt(child)
            node.names = self._names(path)
        else:
            node.content = path.read_bytes()
            names = [name.removeprefix("user.") for name in os.listxattr(path) if name.startswith("user.")]
            found = {name: self._real.attribute(path, name) for name in names}
            node.attributes = {name: value for name, value in found.items() if value is not None}
            node.synced_attributes = dict(node.attributes)

    def _node(self, path: Path) -> Node:
        inode = path.stat().st_ino
        if inode not in self._nodes:
            self._nodes[inode] = DirectoryNode() if path.is_dir() else FileNode()
        return self._nodes[inode]

    def _names(self, directory: Path) -> dict[str, Node]:
        return {path.name: self._node(path) for path in directory.iterdir()}

    def _changed(self, directory: Path) -> None:
        with self._lock:
            node = self._node(directory)
            assert isinstance(node, DirectoryNode)
            node.later.append(self._names(directory))

    @contextmanager
    def _losing(self, path: Path) -> Iterator[None]:
        """Forget the inode that loses its name `path`: the kernel reuses inode numbers."""
        with self._lock:
            inode = path.stat().st_ino if path.exists() else None
            yield
            if inode is not None:
                self._nodes.pop(inode, None)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OpenFile:
        with self._lock:
            made = create and not path.exists()
            inner = self._real.open(path, create=create, writable=writable)
            node = self._node(path)
        assert isinstance(node, FileNode)
        if made:
            self._changed(path.parent)
        return _File(inner, node)

    def status(self, path: Path) -> FileStatus | None:
        return self._real.status(path)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self._real.set_modified(path, modified_ms)

    def attribute(self, path: Path, name: str) -> bytes | None:
        return self._real.attribute(path, name)

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        self._real.set_attribute(path, name, value)
        node = self._node(path)
        assert isinstance(node, FileNode)
        node.attributes[name] = value

    def rename(self, source: Path, target: Path) -> None:
        with self._losing(target):
            self._real.rename(source, target)
        self._changed(target.parent)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if missing_ok and not path.exists():
            return
        with self._losing(path):
            self._real.unlink(path)
        self._changed(path.parent)

    def make_dir(self, path: Path) -> None:
        if path.exists():
            return
        self.make_dir(path.parent)
        self._real.make_dir(path)
        self._changed(path.parent)

    def remove_dir(self, path: Path) -> None:
        with self._losing(path):
            self._real.remove_dir(path)
        self._changed(path.parent)

    def list_dir(self, path: Path) -> list[str]:
        return self._real.list_dir(path)

    def sync_dir(self, path: Path) -> None:
        node = self._node(path)
        assert isinstance(node, DirectoryNode)
        node.names = self._names(path)
        node.later = []

    def lock(self, path: Path) -> FileLock | None:
        made = not path.exists()
        lock = self._real.lock(path)
        if made:
            self._changed(path.parent)
        return lock


def _after_power_loss(synced: bytes, written: bytes, chance: random.Random | None) -> bytes:
    if chance is None or written == synced:
        return synced
    if not written.startswith(synced):
        return chance.choice([synced, written])
    end = chance.randint(len(synced), len(written))
    zeros = chance.randint(0, 3) == 0
    return synced + (bytes(end - len(synced)) if zeros else written[len(synced) : end])
