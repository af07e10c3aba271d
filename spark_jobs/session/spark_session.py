"""Spark sessions that start anywhere, print nothing, leave no files behind, and end reliably.

A session is local (`local[*]`), on a cluster (any master URL), the one of the `spark-submit` that started
this process, or on a Spark Connect server (`sc://host:port`). All files of a local session are in one scratch
directory that is removed with it.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j carries no types
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from core.errors import InvalidInputError, SiltstoneError
from spark_jobs.errors import SparkUnavailableError, SparkVersionError
from spark_jobs.session.class_archive import find_archive, use_options, write_options
from spark_jobs.session.java import find_java, write_java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]  # py4j carries no types

    from spark_jobs.session.java import JavaRuntime

TASK_ATTEMPTS = 3
_SLOTS_UNKNOWN = 8
_LOG = "standard-error.log"
_LOOPBACK = "127.0.0.1"
_CONNECT_PORT = 15002
_MIN_SPARK = (4, 1)  # the first version with `repartitionById`
# The first call of Java imports the former, and the first `mapInArrow` the latter.
_IMPORTED_LATER = ("pyspark.testing.utils", "pandas")
_CONNECT_SECONDS = 10
_STOP_SECONDS = 30
_ARCHIVE_SECONDS = 300
_ABANDON_SECONDS = 0.1
_LOGGERS = ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger")
_JAVA_EXCEPTION: Final = 'Exception in thread "main" '
# A Unix socket's path has at most 107 characters; Spark's file name takes 43 of them.
_MAX_SOCKET_DIRECTORY = 60

# The root logger, and the logger of PySpark's gateway: without a level for the latter, Spark prints on
# standard error that it changes the level.
_LOG4J2 = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
logger.submit.name = org.apache.spark.deploy.SparkSubmit
logger.submit.level = {level}
"""

# Shuffled rows are fingerprints, which do not compress.
_SHUFFLE_CONF = {"spark.shuffle.compress": "false", "spark.shuffle.spill.compress": "false"}

# Spark would hash all rows to detect a repeated task whose output differs, and would fail a query whose last
# stage has started. Our tasks do differ, because their reports contain times. The stages themselves detect a
# mixture of executions (`spark_jobs.shuffle.row_counts`). Either of the two settings turns hashing on.
_QUERY_CONF = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # Bounds the memory of a worker besides its key table, even if one key has all records.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
}

# Java only moves bytes here: its second compiler costs several times what it gains.
_QUICK_COMPILER = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1"

_WORKER_DAEMON = "spark_jobs.worker_daemon"

# Scratch directories of the sessions of this process, by the gateway to their Java.
_scratches: WeakKeyDictionary[JavaGateway, Path] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How to reach or start Spark.

    `master` is a Spark master URL or `sc://host:port`; None takes the master of `spark-submit`. `log_level`
    is log4j's (error, warn, info, …). Spark's errors reach the caller as exceptions, so its log is for
    debugging; without a level a local Spark and its workers write nothing to standard error. `conf` has
    Spark's own settings and overrides the ones set here. `written_archive` is a file to which the Java of a
    local session writes the classes that it has loaded when it ends, which takes many seconds.
    """

    master: str | None = "local[*]"
    app_name: str = "siltstone"
    driver_memory: str = "1g"
    log_level: str | None = None
    progress_bar: bool = False
    ui: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    written_archive: Path | None = None

    @property
    def is_quiet(self) -> bool:
        """Return True if Spark must not write to standard error."""
        return self.log_level is None and not self.progress_bar

    @property
    def is_connect(self) -> bool:
        """Return True if the session is on a Spark Connect server, which needs no Java here."""
        return self.master is not None and self.master.startswith("sc://")

    @property
    def address(self) -> str:
        """The place of the session, for messages: the master, unless `spark-submit` has chosen another one.

        The parameters of a Connect URL are left out, because they may hold a token.
        """
        if self.master is None or (_is_submitted() and not self.is_connect):
            return "the master of spark-submit"
        return self.master.partition(";")[0] if self.is_connect else self.master

    @property
    def is_local(self) -> bool:
        """Return True if driver and tasks run on this machine only."""
        return self.master is not None and re.fullmatch(r"local(\[.*\])?", self.master) is not None


def _is_submitted() -> bool:
    """Return True if `spark-submit` has started this process, and the Java of its session."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start_session(settings: SparkSettings) -> SparkSession:
    """Return a session for `settings`, or the active one of this process.

    Raise JavaNotFoundError, SparkUnavailableError, or SparkVersionError for a server that is too old. The
    caller ends the session with `stop_session`.
    """
    if settings.is_quiet:
        _silence_python()
    if settings.is_connect:
        spark = _connect(settings)
        try:
            return _with_query_conf(_of_known_version(spark))
        except SiltstoneError:
            stop_session(spark)
            raise
    if _is_submitted():
        return _with_query_conf(_of_known_version(_build(settings, {})))
    active = SparkSession.getActiveSession()
    if active is not None:
        return _with_query_conf(_of_known_version(active))
    scratch = Path(tempfile.mkdtemp(prefix="siltstone-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    try:
        java = find_java(os.environ)
        with _launch_environment(settings, java, scratch), _imports_of_pyspark():
            spark = _build(settings, _launch_conf(settings, java, scratch))
        if not settings.is_local:
            _use_configured_python(spark)
    except SparkUnavailableError as error:
        _forget_failed_start()
        output = _reason_in(scratch / _LOG)
        shutil.rmtree(scratch, ignore_errors=True)
        if not output:
            raise
        raise SparkUnavailableError(f"{error.message}; its output: {output}", remedy=error.remedy) from error
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _scratches[SparkContext._gateway] = scratch  # noqa: SLF001 -- there is no public way
    return spark


def stop_session(spark: SparkSession, wait_seconds: float = _STOP_SECONDS) -> bool:
    """End the session and the Java process that was started here; kill it after `wait_seconds`.

    Do nothing if Java has already ended, for example by a signal to the process group. Return False if Java
    did not end in order.
    """
    gateway = None if _is_submitted() else _gateway_of(spark)
    with ExitStack() as last:
        if gateway is not None:
            last.enter_context(_accumulators_stopped(spark))
            last.callback(_forget, gateway, wait_seconds)
        with suppress(PySparkException, Py4JError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # PySpark's way to report that Java is gone
            if not is_classic(spark):
                # PySpark would call a server that is gone for ten minutes.
                spark.client.set_retry_policies([])
            spark.stop()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process is None or process.returncode == 0


@contextmanager
def _accumulators_stopped(spark: SparkSession) -> Iterator[None]:
    """Stop PySpark's server of accumulators while the block ends Java.

    Alone, the server needs up to a second: it looks once a second whether it was stopped. When Java ends, the
    connection between the two ends, and the server looks at once. It would print that as an error.
    """
    context = spark.sparkContext
    server: Any = getattr(context, "_accumulatorServer", None)  # there is no public way
    if server is None:
        yield
        return
    context._accumulatorServer = None  # type: ignore[assignment]  # noqa: SLF001 -- already stopped
    server.handle_error = _ignore_request
    with ThreadPoolExecutor(1, thread_name_prefix="spark-stop") as thread:
        thread.submit(server.shutdown)
        yield


def _ignore_request(_request: object, _address: object) -> None:
    """Report nothing about a connection that has ended."""


def _forget(gateway: JavaGateway, wait_seconds: float) -> None:
    """End Java, and remove the session's files."""
    _forget_sessions()
    _end_java(gateway, wait_seconds)
    if (scratch := _scratches.pop(gateway, None)) is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def is_classic(spark: SparkSession) -> bool:
    """Return True if the driver belongs to this process; False for Spark Connect."""
    return hasattr(spark, "_jvm")


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks the session can run at a time, as far as this process knows.

    Raise SparkUnavailableError if the session is gone.
    """
    if not is_classic(spark):
        return _SLOTS_UNKNOWN
    with gone_sessions_named():
        return int(spark.sparkContext.defaultParallelism)


@contextmanager
def gone_sessions_named() -> Iterator[None]:
    """Raise SparkUnavailableError for what a session raises whose Java, or whose server, is gone."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise SparkUnavailableError(f"the Spark session is gone: {_first_line(error)}") from error


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Start a session that ends with the block, also on an interrupt."""
    spark = start_session(settings)
    try:
        yield spark
    finally:
        written = settings.written_archive
        has_ended = stop_session(spark, _STOP_SECONDS if written is None else _ARCHIVE_SECONDS)
        if written is not None and not has_ended:
            written.unlink(missing_ok=True)  # it may be incomplete


def _connect(settings: SparkSettings) -> SparkSession:
    """Return a Connect session.

    Check first that the server accepts connections and speaks gRPC: PySpark would wait ten minutes.
    """
    assert settings.master is not None
    try:
        server = urlsplit(settings.address)  # without parameters, which an error could show
        host, port = server.hostname, server.port or _CONNECT_PORT
    except ValueError:
        host, port = None, 0
    if host is None:
        raise InvalidInputError(
            f"{settings.address!r} names no Spark Connect server", remedy="write sc://host:port"
        )
    address = (host, port)
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise SparkUnavailableError(
            f"no Spark Connect server responds at {address[0]}:{address[1]}: {error}"
        ) from error
    builder = SparkSession.builder.remote(settings.master)
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    try:
        if not _speaks_grpc(settings.master):
            raise SparkUnavailableError(
                f"no Spark Connect server responds at {address[0]}:{address[1]}, although something accepts"
                " connections there",
                remedy="correct the port, or use_ssl in the address",
            )
        return builder.getOrCreate()
    except (PySparkException, ImportError) as error:
        raise SparkUnavailableError(
            f"no session at {settings.address}: {_without_values(error, settings)}"
        ) from None


def _speaks_grpc(master: str) -> bool:
    """Return True if the server of a Connect URL completes the handshake of gRPC in time."""
    grpc: Any = importlib.import_module("grpc")  # installed where jobs are planned
    client: Any = importlib.import_module("pyspark.sql.connect.client")
    channel = client.DefaultChannelBuilder(master).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
    except grpc.FutureTimeoutError:
        return False
    finally:
        channel.close()
    return True


def _without_values(error: Exception, settings: SparkSettings) -> str:
    """Return an error's message without the values of the parameters in a Connect URL, such as a token."""
    message = str(error)
    for parameter in (settings.master or "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if secret := value or name:
            message = message.replace(secret, "***")
    return message


def _of_known_version(spark: SparkSession) -> SparkSession:
    """Return the session. Raise SparkVersionError if its server is too old."""
    try:
        version = spark.version
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkUnavailableError(f"Spark does not state its version: {_first_line(error)}") from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _MIN_SPARK:
        needed = ".".join(map(str, _MIN_SPARK))
        raise SparkVersionError(
            f"the Spark server has version {version}, but compaction needs repartitionById of Spark {needed}",
            remedy=f"run jobs on Spark {needed} or later",
        )
    return spark


def _with_query_conf(spark: SparkSession) -> SparkSession:
    """Set our query settings on another owner's session, where that owner has set none."""
    present = spark.conf.getAll
    for key in _QUERY_CONF.keys() - present.keys():
        spark.conf.set(key, _QUERY_CONF[key])
    return spark


def _build(settings: SparkSettings, conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in {**conf, **settings.conf}.items():
        builder = builder.config(key, value)
    try:
        session = _in_a_thread(builder.getOrCreate)
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkUnavailableError(
            f"Spark did not start at {settings.address}: {_first_line(error)}",
            remedy="set log_level to info and read its log",
        ) from error
    return session.__enter__()  # only makes it the active session of this thread


def _in_a_thread(build: Callable[[], SparkSession]) -> SparkSession:
    """Build a session outside the main thread, and clean up if the caller is interrupted.

    In the main thread PySpark would install its own SIGINT handler, and an interrupt would leave half a
    session.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="spark-start") as thread:
        building = thread.submit(build)
        try:
            return building.result()
        except BaseException:
            if not building.done():
                _abandon(building)
            raise


@contextmanager
def _imports_of_pyspark() -> Iterator[None]:
    """Import in another thread what PySpark's first calls import in any case, while Java starts."""
    with ThreadPoolExecutor(1, thread_name_prefix="spark-imports") as thread:
        for module in _IMPORTED_LATER:
            thread.submit(importlib.import_module, module)
        yield


def _abandon(building: Future[SparkSession]) -> None:
    """Kill a Java process that is still starting: a dead cluster may take minutes to respond."""
    ours = not _is_submitted()
    while not wait([building], timeout=_ABANDON_SECONDS).done:
        gateway = SparkContext._gateway if ours else None  # noqa: SLF001 -- there is no public way
        if gateway is not None and hasattr(gateway, "proc"):
            gateway.proc.kill()
    with suppress(PySparkException, Py4JError, OSError, RuntimeError):
        if building.exception() is None:
            building.result().stop()
    with suppress(Py4JError, OSError):
        if ours and SparkContext._gateway is not None:  # noqa: SLF001
            _end_java(SparkContext._gateway)  # noqa: SLF001


def _silence_python() -> None:
    """Silence loggers that repeat errors which already reach the caller as exceptions."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_the_gateway)


def _is_not_of_the_gateway(record: logging.LogRecord) -> bool:
    """Return False for records that Py4J writes to the root logger when its Java is gone."""
    return Path(record.pathname).parent.name != "py4j"


def _launch_conf(settings: SparkSettings, java: JavaRuntime, scratch: Path) -> dict[str, str]:
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOG4J2.format(level=settings.log_level or "error"))
    java_options = [f'"-Dlog4j2.configurationFile={log_settings}"', f'"-Djava.io.tmpdir={scratch}"']
    # Executors create their sockets in their own temporary directories. On YARN, these have long names.
    has_unix_sockets = settings.is_local and len(str(scratch)) <= _MAX_SOCKET_DIRECTORY
    conf = {
        "spark.app.name": settings.app_name,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.python.unix.domain.socket.enabled": str(has_unix_sockets).lower(),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_SHUFFLE_CONF,
        **_QUERY_CONF,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": str(settings.progress_bar).lower(),
    }
    if settings.master is not None:
        conf["spark.master"] = _with_task_attempts(settings.master)
    if "NUMBA_CACHE_DIR" in os.environ:
        conf["spark.executorEnv.NUMBA_CACHE_DIR"] = os.environ["NUMBA_CACHE_DIR"]
    if not settings.is_local:
        # A task that failed is tried on another executor. Not for the whole application: once credentials are
        # renewed, every executor works again.
        conf["spark.excludeOnFailure.taskAndStage.enabled"] = "true"
    else:
        conf["spark.driver.extraJavaOptions"] += f" {_QUICK_COMPILER} {_archive_options(settings, java)}"
        conf |= {
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.host": _LOOPBACK,
            "spark.local.dir": str(scratch),
            "spark.python.daemon.module": _WORKER_DAEMON,
        }
    return conf


def _archive_options(settings: SparkSettings, java: JavaRuntime) -> str:
    if settings.written_archive is not None:
        return write_options(settings.written_archive)
    archive = find_archive(java)
    return "" if archive is None else use_options(archive)


def _with_task_attempts(master: str) -> str:
    """Let a local master retry tasks: `local` and `local[4]` never do, `local[4,3]` does."""
    simple = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return f"local[{simple[1] or 1},{TASK_ATTEMPTS}]" if simple else master


def _use_configured_python(spark: SparkSession) -> None:
    """Start workers with `spark.pyspark.python`, if it is set; PySpark leaves it to `spark-submit`."""
    context = spark.sparkContext
    with gone_sessions_named():
        context.pythonExec = context.getConf().get("spark.pyspark.python", context.pythonExec)


@contextmanager
def _launch_environment(settings: SparkSettings, java: JavaRuntime, scratch: Path) -> Iterator[None]:
    """Set the process environment with which Java starts, and restore it afterwards."""
    log = scratch / _LOG if settings.is_quiet else None
    java_home = write_java_home(java, scratch / "java", log=log)
    wanted = {"JAVA_HOME": str(java_home)}
    if settings.is_local:
        wanted |= {"SPARK_LOCAL_IP": _LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    else:
        wanted |= {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _gateway_of(spark: SparkSession) -> JavaGateway | None:
    """Return PySpark's link to the Java process that it started; None for a session on a Connect server."""
    return SparkContext._gateway if is_classic(spark) else None  # noqa: SLF001 -- there is no public way


def _forget_failed_start() -> None:
    """End the Java process of a start that failed, so that the next start does not take it for a session."""
    _forget_sessions()
    if SparkContext._gateway is not None:  # noqa: SLF001 -- there is no public way
        with suppress(Py4JError, OSError):
            _end_java(SparkContext._gateway)  # noqa: SLF001


def _forget_sessions() -> None:
    """Drop PySpark's references to sessions, which it keeps until they end in order."""
    SparkContext._active_spark_context = None  # noqa: SLF001 -- there is no public way
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001


def _end_java(gateway: JavaGateway, wait_seconds: float = _STOP_SECONDS) -> None:
    """End the Java process and wait for it; PySpark would keep it until Python ends."""
    gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001 -- a later session starts a new Java
    SparkContext._jvm = None  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return
    assert process.stdin is not None
    process.stdin.close()  # tells Java to exit
    try:
        process.wait(wait_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _reason_in(log: Path) -> str:
    """Return the exception that ended Java, or else the last line of its output."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    exceptions = [line for line in lines if line.startswith(_JAVA_EXCEPTION)]
    return (exceptions or lines or [""])[-1].removeprefix(_JAVA_EXCEPTION)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
