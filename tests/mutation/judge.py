"""Judges mutants in forks of this process, which has collected the tests and imported all that they need.

A fork imports the changed module and the modules that import it; it takes all others from this process. The
tests that execute the changed statement run, the quickest first, until one fails. An unchanged run measures
which tests execute which lines, and how long they take.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from enum import StrEnum
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grimp
import pytest
from coverage import Coverage
from numba.core import config
from typing_extensions import override

from object_format.kernels.runtime import kernel_cache
from tests.mutation.interpreted import PythonKernels, PythonLoader
from tests.mutation.mutants import Mutant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from types import CodeType, ModuleType

ROOT: Final = Path(__file__).parents[2]
_OPTIONS: Final = ("-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")
_KERNELS: Final = "object_format.kernels."
# A mutant may loop for ever, and is killed after this multiple of the processor time of the unchanged run. If
# it waits for ever, the same multiple of the time of its tests applies: other work may make them slower.
_LEAST_SECONDS: Final = 60.0  # compiling kernels takes this long
_TIMES_SLOWER: Final = 3.0
_python_kernels: Final = PythonKernels(ROOT)


class Outcome(StrEnum):
    """How a mutant ended."""

    SURVIVED = "survived"
    FAILED_TEST = "killed by a failing test"
    BROKEN = "killed by a crash, or by an error before a test"
    TIMED_OUT = "killed by the time limit"


class Baseline(NamedTuple):
    """Result of the unchanged run: the time of each test, and the tests that execute each line of a file.

    The test of a line that is executed when its module is imported is "".
    """

    processor_seconds: float
    seconds: Mapping[str, float]
    tests: Mapping[str, Mapping[int, Collection[str]]]

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a mutant's statement, the quickest first."""
        by_line = self.tests[mutant.module]
        lines = _statement(ROOT / mutant.module, mutant.line)
        found = {test for line in lines for test in by_line.get(line, ())}
        # Any test may depend on the default of a parameter or field, or execute machine code.
        if found == {""} or _is_compiled(mutant.module):
            found = set(self.seconds)
        return sorted(found & set(self.seconds), key=lambda test: (self.seconds[test], test))


def collect(tests: Collection[str], interpreted: Collection[str] = ()) -> None:
    """Import the tests, and thereby nearly all modules that they need, into this process.

    The kernels of the modules `interpreted` run as Python.
    """
    if _python_kernels not in sys.meta_path:
        sys.meta_path.insert(0, _python_kernels)
    before, _python_kernels.names = _python_kernels.names, set(map(_name, interpreted))
    _forget({f"{name.replace('.', '/')}.py" for name in before ^ _python_kernels.names})
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main([*_OPTIONS, "--collect-only", *tests])
    if status:
        sys.exit(f"the tests cannot be collected:\n{output.getvalue()}")


def measure(modules: Collection[str], tests: Collection[str], directory: Path) -> Baseline:
    """Run the tests on unchanged modules; exit if they fail, as then no mutant could survive."""
    result, output = directory / "baseline", directory / "output"
    process = _fork(partial(_measure, modules, tests, result), output, directory / "measured")
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit(f"the tests fail without a mutation:\n{output.read_text()[-20_000:]}")
    baseline: Baseline = pickle.loads(result.read_bytes())
    return baseline


def require_survival_of_unchanged(module: str, baseline: Baseline, directory: Path) -> None:
    """Exit if a mutant that does not differ from its module is killed, as then the others prove nothing."""
    same = Mutant(module, 1, "", "", (ROOT / module).read_text())
    quickest = min(baseline.seconds, key=baseline.seconds.__getitem__)
    output = directory / "output"
    process = _fork(partial(_judge, same, [quickest], 600.0), output, directory / "unchanged")
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit(f"{module} cannot be replaced by a mutant:\n{output.read_text()[-20_000:]}")


def outcomes(
    mutants: Iterable[Mutant], baseline: Baseline, directory: Path, limit: int
) -> Iterator[tuple[Mutant, Outcome]]:
    """Judge mutants, `limit` at a time."""
    running: dict[int, tuple[Mutant, int, float]] = {}
    for number, mutant in enumerate(mutants):
        tests = baseline.of(mutant)
        if not tests:
            yield mutant, Outcome.SURVIVED
            continue
        while len(running) >= limit:
            yield from _ended(running)
        process = _fork(
            partial(_judge, mutant, tests, _LEAST_SECONDS + _TIMES_SLOWER * baseline.processor_seconds),
            Path(os.devnull),
            directory / str(number % 100),
        )
        seconds = _LEAST_SECONDS + _TIMES_SLOWER * sum(map(baseline.seconds.__getitem__, tests))
        running[os.pidfd_open(process)] = mutant, process, time.monotonic() + seconds
    while running:
        yield from _ended(running)


def _ended(running: dict[int, tuple[Mutant, int, float]]) -> Iterator[tuple[Mutant, Outcome]]:
    """Wait for one or more processes, and kill those that take too long."""
    first = min(deadline for _, _, deadline in running.values())
    ended, _, _ = select.select(list(running), [], [], max(0.0, first - time.monotonic()))
    late = [each for each, (_, _, deadline) in running.items() if deadline < time.monotonic()]
    for descriptor in {*ended, *late}:
        mutant, process, _ = running.pop(descriptor)
        os.close(descriptor)
        os.killpg(process, signal.SIGKILL)  # it is a zombie at least; tests may have left processes
        match os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
            case pytest.ExitCode.OK:
                yield mutant, Outcome.SURVIVED
            case pytest.ExitCode.TESTS_FAILED:
                yield mutant, Outcome.FAILED_TEST
            case status:
                is_late = descriptor in late or status == -signal.SIGXCPU
                yield mutant, Outcome.TIMED_OUT if is_late else Outcome.BROKEN


def _fork(work: Callable[[], int], output: Path, directory: Path) -> int:
    """Run `work` in a fork with a new process group, and return its process id."""
    process = os.fork()
    if process:
        return process
    status: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setpgid(0, 0)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ["PYTEST_ADDOPTS"] = f"--basetemp={directory}"
        status = work()
    finally:
        os._exit(status)


def _measure(modules: Collection[str], tests: Collection[str], result: Path) -> int:
    paths = [str(ROOT / module) for module in modules]
    coverage = Coverage(data_file=None, config_file=False, include=paths)
    recorder = _Recorder(coverage)
    _forget(modules)
    coverage.start()
    status = pytest.main([*_OPTIONS, *tests], plugins=[recorder])
    coverage.stop()
    data = coverage.get_data()
    lines = {module: data.contexts_by_lineno(str(ROOT / module)) for module in modules}
    result.write_bytes(pickle.dumps(Baseline(time.process_time(), dict(recorder.seconds), lines)))
    return status


def _judge(mutant: Mutant, tests: Collection[str], processor_seconds: float) -> int:
    limit = round(processor_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    name = _name(mutant.module)
    _forget([mutant.module])
    if _is_compiled(mutant.module):
        _separate_compiled_kernels(mutant)
    loader = PythonLoader if name in _python_kernels.names else _Changed
    sys.meta_path.insert(0, _Finder(name, loader(name, str(ROOT / mutant.module), mutant.code)))
    importlib.import_module(name)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return pytest.main([*_OPTIONS, *files], plugins=[_Chosen(tests)])


def _forget(modules: Collection[str]) -> None:
    """Let the next import of some modules, of all that import them, and of all tests load them again."""
    names = set(map(_name, modules))
    names |= {each for name in names for each in _graph().find_downstream_modules(name)}
    for name in [each for each in sys.modules if each in names or each.startswith("tests.")]:
        if not name.startswith("tests.mutation"):
            package, _, last = name.rpartition(".")
            if getattr(sys.modules.get(package), last, None) is sys.modules[name]:
                delattr(sys.modules[package], last)  # `from package import module` would find it
            del sys.modules[name]


@cache
def _graph() -> grimp.ImportGraph:
    packages = [each.parent.name for each in ROOT.glob("*/__init__.py") if each.parent.name != "tests"]
    return grimp.build_graph(*packages, cache_dir=None, exclude_type_checking_imports=True)


def _name(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def _is_compiled(module: str) -> bool:
    """Return True if numba compiles functions or constants of a module; some are outside of the kernels."""
    if _name(module) in _python_kernels.names:
        return False
    return _name(module).startswith(_KERNELS) or "@njit" in (ROOT / module).read_text()


def _separate_compiled_kernels(mutant: Mutant) -> None:
    """Give the kernels that are imported from now on a separate stamp and directory."""
    numba_settings: Any = config
    numba_settings.CACHE_DIR = f"{os.environ['PYTEST_ADDOPTS'].partition('=')[2]}-kernels"
    kernel_cache.cache_directories.cache_clear()
    kernel_cache._stamp = lambda _: str(hash(mutant))  # type: ignore[assignment]


@cache
def _statement(path: Path, line: int) -> range:
    """Return the lines of the innermost statement with a line, without those of its body."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.stmt):
            body: list[ast.stmt] = getattr(node, "body", [])
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = range(node.lineno, max(end, node.lineno) + 1)
            if line in lines and (len(best) == 1 or len(lines) < len(best)):
                best = lines
    return best


class _Finder(MetaPathFinder):
    """Finder of one module, whose code has changed."""

    def __init__(self, name: str, loader: SourceFileLoader) -> None:
        self._name = name
        self._loader = loader

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = fullname == self._name
        return spec_from_file_location(fullname, self._loader.path, loader=self._loader) if found else None


class _Changed(SourceFileLoader):
    """Loader of a mutant."""

    def __init__(self, name: str, path: str, code: str) -> None:
        super().__init__(name, path)
        self._code = code

    @override
    def get_code(self, fullname: str) -> CodeType:
        return compile(self._code, self.path, "exec")


class _Recorder:
    """Plugin that records the time of each test, and separates what they execute."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


class _Chosen:
    """Plugin that runs some of the collected tests, in their order."""

    def __init__(self, tests: Iterable[str]) -> None:
        self._position = {test: position for position, test in enumerate(tests)}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, Any, Any]:
        result = yield
        chosen = (item for item in items if item.nodeid in self._position)
        items[:] = sorted(chosen, key=lambda item: self._position[item.nodeid])
        return result
