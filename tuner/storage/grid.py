"""A recorded grid: what every config of a search space came to for one script, as a file that a runner can serve.

Gzip of JSON lines: a header, then a line a trial. Every field, with its unit, is in README.md of this folder.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tuner.child import shape
from tuner.errors import GridError
from tuner.model import Config, Evidence, OutcomeKind, Side, Value
from tuner.storage.atomic import write_named

SCHEMA = 1
LARGEST_BYTES = 64 * 2**20
"""Of a file's text: a grid of 500 configs has less than one."""
DIGITS = 7
"""Significant ones that are kept of a reading."""

Line = TypeVar("Line", "GridHeader", "GridRow")


@dataclass(frozen=True)
class GridKnob:
    """An axis of the grid: as ``Knob`` and ``Axis`` declare it, but for what follows from the script.

    ``moot_beside``: another knob → its values beside which this one means nothing.
    """

    name: str
    values: tuple[Value, ...]
    as_written: int
    meaning: str = ""
    tier: int = 1
    ordered: bool = False
    loader: bool = False
    heavier: bool = False
    late: bool = False
    own: bool = False
    on_cores: bool = False
    beyond_wait: bool = False
    switchable: bool = False
    moot_beside: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class GridHeader:
    """What was recorded, where, and of which space. The fields are described in README.md."""

    schema: int
    name: str
    version: str
    recorded: str
    script: str
    script_sha256: str
    arguments: tuple[str, ...]
    device_kind: str
    device_name: str
    memory_bytes: int
    cores: int
    software: Mapping[str, str]
    space: str
    framework: str
    effective_batch: str
    knobs: tuple[GridKnob, ...]
    as_written: Mapping[str, Value]
    pinned: Mapping[str, Value]
    configs: int
    complete: bool
    seed: int
    window_s: float
    warmup_s: float
    turn_s: float
    trial_timeout_s: float
    max_host_bytes: int | None = None
    max_device_bytes: int | None = None
    bottleneck: str = ""
    input_share: float | None = None
    notes: tuple[str, ...] = ()
    ranks: int = 1

    @property
    def cores_of_a_rank(self) -> int:
        """Those that each rank had for its own threads and workers."""
        return max(1, self.cores // self.ranks)


@dataclass(frozen=True)
class GridEvidence:
    """What observation said of a knob of the config; ``of_value`` as ``KnobReport`` has it."""

    knob: str
    evidence: Evidence
    seen: int = 0
    changed: int = 0
    of_value: bool | None = None


@dataclass(frozen=True)
class GridReading:
    """What was read of a trial that gave a measurement. Seconds, bytes, and amounts in ``unit``.

    ``pairs``: neighbouring turns, each the trial's own amount, its seconds and the share of the cores' time that others
    had, and the same of the script as written. ``blocks``: amount and seconds, where no turns were taken;
    ``reference_rate`` is the rate of the script as written at that time then.
    """

    unit: str
    pairs: tuple[tuple[float, float, float, float, float, float], ...] = ()
    blocks: tuple[tuple[float, float], ...] = ()
    reference_rate: float | None = None
    steps_per_s: float = 0.0
    wait_share: float | None = None
    host_bytes: int = 0
    device_bytes: int | None = None
    first_step_s: float = 0.0
    compile_s: float = 0.0
    compile_cache: str = ""
    warmup_s: float = 0.0
    cpu_s_per_sample: float = 0.0
    foreign_cpus: float = 0.0
    wanted_cpus: float | None = None
    steady: bool = True
    knobs: tuple[GridEvidence, ...] = ()


@dataclass(frozen=True)
class GridRow:
    """One trial: a config, the script as written (an empty config), or a ``side`` of the loop that a probe ran alone.

    ``seconds`` is from its launch to its end, the turns of the script as written included.
    """

    config: Mapping[str, Value]
    kind: OutcomeKind
    seconds: float
    reason: str = ""
    detail: str = ""
    side: Side | None = None
    reading: GridReading | None = None

    @property
    def complete(self) -> bool:
        """Whether it says how fast its config is."""
        return self.kind is OutcomeKind.COMPLETE and self.reading is not None


@dataclass(frozen=True)
class Grid:
    """``rows`` in the order in which they were recorded, the script as written first; a config has one row.

    ``place`` is the file, for messages.
    """

    header: GridHeader
    rows: tuple[GridRow, ...]
    place: str = ""

    @property
    def baseline(self) -> GridRow:
        """The script as written."""
        return next(row for row in self.rows if not row.config and row.side is None)

    @property
    def sides(self) -> tuple[GridRow, ...]:
        """What a probe ran."""
        return tuple(row for row in self.rows if row.side is not None)

    @property
    def configs(self) -> Mapping[Config, GridRow]:
        """Config → its row, those of the baseline and of the search."""
        return {Config(row.config): row for row in self.rows if row.side is None}


def write_grid(path: Path, grid: Grid) -> None:
    """Writes the file as a whole. The same grid gives the same bytes. Raises ``StorageError``."""
    documents = [shape.plain(grid.header), *map(_row_document, grid.rows)]
    text = "".join(json.dumps(document, separators=(",", ":")) + "\n" for document in documents)
    write_named(path, gzip.compress(text.encode(), mtime=0))


def read_grid(path: Path) -> Grid:
    """The grid of a file. Raises ``GridError`` naming the file, the line and what is wrong there."""
    place = str(path)
    lines = _text(path).splitlines()
    if not lines:
        raise _refused(place, 1, "nothing is there")
    document = _document(place, 1, lines[0])
    schema = document.get("schema")
    if schema != SCHEMA:
        raise GridError(
            f"{place} has schema {schema!r:.40}, and this version reads {SCHEMA}",
            hint="record it anew: autotune record",
        )
    header = _line(place, 1, GridHeader, document)
    if header.ranks < 1:
        raise _refused(place, 1, f"header.ranks is {header.ranks}")
    for knob in header.knobs:
        if not 0 <= knob.as_written < len(knob.values):
            raise _refused(place, 1, f"header.knobs: {knob.name}.as_written is {knob.as_written}, no index of a value")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        row = _line(place, number, GridRow, _document(place, number, line))
        wrong = _wrong(row, header)
        if wrong:
            raise _refused(place, number, wrong)
        rows.append(row)
    _check_rows(place, rows)
    return Grid(header, tuple(rows), place)


def _text(path: Path) -> str:
    try:
        with gzip.open(path) as packed:
            content = packed.read(LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise GridError(f"can't read {path}: {reason}", hint="a grid is what autotune record --out wrote") from error
    if len(content) > LARGEST_BYTES:
        raise GridError(f"{path} holds more than {LARGEST_BYTES:,} bytes", hint="no grid is so large")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise GridError(f"{path} is no text: {error}", hint="a grid is what autotune record --out wrote") from error


def _document(place: str, number: int, line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refused(place, number, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _refused(place, number, f"it is {document!r:.60}, not an object")
    return document


def _line(place: str, number: int, kind: type[Line], document: dict[str, Any]) -> Line:
    try:
        return shape.read(kind, document, "header" if kind is GridHeader else "row")
    except ValueError as error:
        raise _refused(place, number, str(error)) from error


def _wrong(row: GridRow, header: GridHeader) -> str:
    """What of a row can't be, or ""."""
    if not 0 <= row.seconds < math.inf:
        return f"row.seconds is {row.seconds}"
    axes = {knob.name: knob for knob in header.knobs}
    for name, value in row.config.items():
        # A probe may run half a batch, which is no value of the axis.
        values = axes[name].values if name in axes and row.side is None else (value,)
        if not any(type(value) is type(other) and value == other for other in values):
            return f"row.config.{name} is {value!r:.60}, and the header's values of it are {list(values)}"
    reading = row.reading
    if row.kind is OutcomeKind.COMPLETE and reading is None:
        return "row.kind is complete, and row.reading is missing"
    if reading is None:
        return ""
    for pair in reading.pairs:
        if not all(0 <= number < math.inf for number in pair) or not (pair[1] > 0 and pair[4] > 0):
            return f"row.reading.pairs holds {list(pair)}: amounts and shares are at least 0, seconds above"
    for amount, seconds in reading.blocks:
        if not (0 <= amount < math.inf and 0 < seconds < math.inf):
            return f"row.reading.blocks holds {[amount, seconds]}: amounts are at least 0, seconds above"
    counted = sum(pair[0] for pair in reading.pairs) + sum(amount for amount, _ in reading.blocks)
    beside = sum(pair[3] for pair in reading.pairs) if reading.pairs else 1.0
    return "row.reading has counted nothing" if not (counted > 0 and beside > 0) else ""


def _check_rows(place: str, rows: Iterable[GridRow]) -> None:
    seen: dict[tuple[Side | None, Config], int] = {}
    for number, row in enumerate(rows, 2):
        # Of a side there is one run; half a batch is one of another config.
        before = seen.setdefault((row.side, Config(row.config)), number)
        if before != number:
            raise _refused(place, number, f"its config {dict(row.config)} is that of line {before}")
    first = seen.get((None, Config()))
    if first is None or not next(row for row in rows if not row.config and row.side is None).complete:
        raise GridError(
            f"{place} has no measurement of the script as written", hint="every gain is held against it: record it anew"
        )


def _refused(place: str, number: int, what: str) -> GridError:
    return GridError(
        f"{place}, line {number}: {what}",
        hint="a grid is what autotune record --out wrote; the file was changed or cut",
    )


def _row_document(row: GridRow) -> dict[str, Any]:
    """The row in JSON's own types. A config's values are exact, and readings have no more digits than they mean."""
    document: dict[str, Any] = shape.plain(row)
    return {name: _rounded(part) if name in ("seconds", "reading") else part for name, part in document.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return value
