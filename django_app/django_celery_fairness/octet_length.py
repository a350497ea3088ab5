"""The length of a text in bytes, computed by the database.

Invariant: the same number on every database that Django ships with, for any text in UTF-8.

Weakness: a database that keeps its text in another encoding counts that encoding's bytes.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler


class OctetLength(models.Func):
    """``OCTET_LENGTH(expression)``, in each database's own spelling."""

    function = "OCTET_LENGTH"
    arity = 1
    output_field = models.IntegerField()

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any
    ) -> Any:
        """Cast first: SQLite before 3.43 has no octet_length, and a blob's length is in bytes."""
        template = "LENGTH(CAST(%(expressions)s AS BLOB))"
        return super().as_sql(compiler, connection, template=template, **context)

    def as_oracle(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any
    ) -> Any:
        """Use Oracle's own name for it."""
        return super().as_sql(compiler, connection, function="LENGTHB", **context)
