"""``autotune trials --waterfall``: what each turn brought, from the script as written to the fastest trial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tuner.cli.tables import show, table
from tuner.errors import ExitCode
from tuner.model import Turn
from tuner.report.waterfall import caution, picture, table_rows
from tuner.storage.atomic import write_durably
from tuner.storage.studies import StoredStudy


def show_waterfall(stored: StoredStudy, turns: Sequence[Turn], svg: str | None, *, as_json: bool) -> int:
    """Prints the turns, and draws them into a file where one is named. Raises ``StorageError`` for that."""
    if svg is not None:
        write_durably(Path(svg), picture(turns, _title(stored)).encode())
    if as_json:
        print(json.dumps([{**asdict(turn), "turned": dict(turn.turned)} for turn in turns], indent=2))
    elif not turns:
        print("nothing is known yet: the script as written was not measured to the end")
    else:
        columns, rows = table_rows(turns)
        show(table(columns, rows, right=[name for name in columns if name not in ("turn", "observed")]))
        print(caution(turns))
    return ExitCode.OK


def _title(stored: StoredStudy) -> str:
    identity = stored.record.identity
    script = identity.get("script.path") or identity.get("script.module") or stored.record.name
    return f"{script} on {identity.get('device.name', '')}"
