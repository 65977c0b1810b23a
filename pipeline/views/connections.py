"""DuckDB databases in memory for rules: they reach no file, no network and no Python variable.

To open a database costs 20 to 50 ms of CPU, as much as twenty rules over 200,000 rows. So a process
has one of one thread; a connection to it costs 0.02 ms, runs in the thread that uses it, and sees
no rows of another connection. Connections that are not in use are kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

TABLE = "pool_rows"  # the one table of rows that rules are evaluated over

_lock = threading.Lock()
# Process -> connections that are not in use. A forked process must not use those of its parent.
_idle: dict[int, list[duckdb.DuckDBPyConnection]] = {}
# Process -> the connection that holds its database open. It evaluates nothing.
_databases: dict[int, duckdb.DuckDBPyConnection] = {}


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A new database in memory.

    threads: that it computes in; by default as many as there are cores.
    """
    config: dict[str, Any] = {"enable_external_access": "false"}
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET lock_configuration = true")
    return connection


@contextmanager
def borrowed_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the database of one thread, for one user at a time. It holds no rows when
    it is given back; after an error it is closed.
    """
    process = os.getpid()
    with _lock:
        idle = _idle.setdefault(process, [])
        if idle:
            connection = idle.pop()
        else:
            if process not in _databases:
                _databases[process] = connect(threads=1)
            connection = _databases[process].cursor()
    try:
        yield connection
        connection.unregister(TABLE)
    except BaseException:
        connection.close()
        raise
    with _lock:
        idle.append(connection)
