"""The user's own table of prices: what an hour on a device costs. None is ever made up here."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.cli.settings import FILE, PRICES
from tuner.errors import UsageError

_MOST = 1e9
_EXAMPLE = 'a [prices] table with lines such as "NVIDIA H200" = 3.2 (currency per hour)'


@dataclass(frozen=True)
class Prices:
    """Device → currency per hour, and the file that says so; "" where there is none."""

    file: str = ""
    per_hour: Mapping[str, float] = field(default_factory=dict)

    def of(self, *names: str) -> float | None:
        """The price under the first of these names that has one."""
        return next((self.per_hour[name] for name in names if name in self.per_hour), None)

    def meant(self, *names: str) -> str:
        """The entry of the table that may mean one of these names, mistyped, or a part of it ("h200"); "" for none."""
        known = {name.casefold(): name for name in self.per_hour}
        close = (difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.9) for name in names)
        mistyped = next((known[matches[0]] for matches in close if matches), "")
        parts = (known[entry] for name in names for entry in known if _words(entry) and _words(entry) <= _words(name))
        return mistyped or next(parts, "")


def _words(name: str) -> set[str]:
    return set(re.findall(r"\w+", name.casefold()))


def find_prices(path: str | None) -> Prices:
    """Those of the file that was named, else of the study.toml here; none where neither is there.

    Raises ``UsageError`` naming the file and what is wrong in it.
    """
    if path is not None:
        prices = read_prices(_text(Path(path)), path)
        if prices is None:
            raise UsageError(f"{path} has no [{PRICES}] table", hint=f"it takes {_EXAMPLE}")
        return Prices(path, prices)
    if not Path(FILE).is_file():
        return Prices()
    prices = read_prices(_text(Path(FILE)), FILE)
    return Prices() if prices is None else Prices(FILE, prices)


def read_prices(text: str, place: str) -> dict[str, float] | None:
    """The table of prices in a TOML document; None where it has none.

    Raises ``UsageError`` for what is no TOML, and for a price that none can be.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"can't read {place}: {error}", hint=f"it takes {_EXAMPLE}") from error
    table = document.get(PRICES)
    if table is None:
        others = [name for name in document if difflib.get_close_matches(name, [PRICES], n=1)]
        if others:
            raise UsageError(f"{place}: unknown table {others[0]!r}", hint=f"did you mean [{PRICES}]?")
        return None
    if not isinstance(table, dict):
        raise UsageError(f"{place}: {PRICES} is {table!r:.60}, not a table", hint=f"it takes {_EXAMPLE}")
    for name, price in table.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price <= _MOST:
            raise UsageError(
                f"{place}: the price of {name!r} is {price!r:.60}, not an amount of money per hour",
                hint=f"it takes {_EXAMPLE}",
            )
    return {name: float(price) for name, price in table.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", hint=f"it is a file with {_EXAMPLE}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"can't read {path}: it isn't UTF-8", hint=f"it is a file with {_EXAMPLE}") from error
