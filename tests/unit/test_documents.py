"""Documents hold what they promise: every link leads somewhere, and the front page stays a front page."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_FRONT_PAGE = 170
# [text](target); an image's ![text](target) as well.
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ELSEWHERE = ("http://", "https://", "mailto:")


def documents() -> list[str]:
    """Every Markdown file of the repository; what a study of an example leaves beside it isn't ours."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split() or [
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("**/*.md") if ".venv" not in path.parts
    ]
    return sorted(name for name in names if (ROOT / name).is_file())


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub derives them; a repeated heading is numbered."""
    seen: dict[str, int] = {}
    found = set()
    for heading in _HEADING.findall(_FENCED.sub("", path.read_text(encoding="utf-8"))):
        words = _LINK.sub(lambda link: link[0][1:].partition("]")[0], heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        found.add(f"{slug}-{number}" if number else slug)
    return frozenset(found)


def broken_links(path: Path, text: str) -> list[str]:
    """The relative links of a document at ``path`` that lead to no file, folder or heading."""
    broken = []
    for target in _LINK.findall(_FENCED.sub("", text)):
        if target.startswith(_ELSEWHERE):
            continue
        name, _, anchor = target.partition("#")
        place = path.parent / name if name else path
        if target.startswith("/") or not place.exists():
            broken.append(target)
        elif anchor:
            document = place / "README.md" if place.is_dir() else place
            if not document.is_file() or anchor not in anchors(document):
                broken.append(target)
    return broken


def taken_apart(text: str) -> list[str]:
    """The commands with a placeholder that a shell takes for several: a ``|`` in it stands in no quotes."""
    shown = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.startswith("    ")]
    commands = [line for line in (*shown, *re.findall(r"`([^`]+)`", text)) if line.startswith("autotune ")]
    words = {line: shlex.shlex(line, posix=True, punctuation_chars="|") for line in commands if "={" in line}
    return [line for line, split in words.items() if "|" in split]


@pytest.mark.parametrize("name", documents())
def test_every_command_with_a_placeholder_is_one_to_a_shell(name: str) -> None:
    assert taken_apart((ROOT / name).read_text(encoding="utf-8")) == []


def test_a_command_that_a_shell_takes_apart_is_found() -> None:
    bare, quoted = "autotune study a.py -- --b={b=1|2}", "autotune study a.py -- '--b={b=1|2}'"
    assert taken_apart(f"    {quoted}\n    {bare}\n\n- `{quoted}`, `{bare}`\n") == [bare]


@pytest.mark.parametrize("name", documents())
def test_every_relative_link_resolves(name: str) -> None:
    path = ROOT / name
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](README.md) [b](nowhere.md) [c](#no-such-heading) [d](README.md#install) [e](https://example.org/x)"
    assert broken_links(ROOT / "CONTRIBUTING.md", text) == ["nowhere.md", "#no-such-heading"]


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_FRONT_PAGE


def test_every_document_of_a_folder_is_linked() -> None:
    """A reference that no other document leads to is read by nobody."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in documents()}
    linked = set()
    for name, text in texts.items():
        for target in _LINK.findall(_FENCED.sub("", text)):
            place = (ROOT / name).parent / target.partition("#")[0]
            if not target.startswith(_ELSEWHERE) and place.exists():
                place = place / "README.md" if place.is_dir() else place
                linked.add(place.resolve())
    unlinked = [name for name in texts if (ROOT / name).resolve() not in linked and name != "README.md"]
    assert unlinked == []
