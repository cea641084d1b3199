"""Ways in which a script harms what was there before it, each in a folder of its own, and what it sees afterwards.

The same script runs under plain Python and as a trial: it has to see the same, and in the trial nothing of the user's
may be changed.
"""

from __future__ import annotations

import os
from pathlib import Path

State = dict[str, tuple[int, int, bytes]]
"""Path below a folder → mode, time of modification in nanoseconds, content (or where a link leads)."""

HARNESS = """
import io, os, pathlib, sys
def seen(folder):
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            yield f"{path} -> {os.readlink(path)}"
        elif os.path.isdir(path):
            yield path + "/"
            yield from seen(path)
        else:
            with open(path, "rb") as file:
                yield f"{path} {file.read()[:80]!r}"
def walked(folder):
    return sorted(os.path.join(a, c) for a, b, cs in os.walk(folder) for c in (*b, *cs))
base = os.getcwd()
for name, code in ATTACKS.items():
    os.chdir(os.path.join(base, name))
    try:
        exec(code, {"io": io, "os": os, "pathlib": pathlib, "say": lambda *what: print(name, *what)})
    except OSError as error:
        print(name, type(error).__name__, error.errno)
    print(name, *seen("."), sep="\\n  ")
    assert walked(".") == sorted(line.split(" ")[0].rstrip("/") for line in seen(".")), walked(".")
    by_scan, by_path = [entry.name for entry in os.scandir(".")], [path.name for path in pathlib.Path(".").iterdir()]
    assert sorted(os.listdir(".")) == sorted(by_scan) == sorted(by_path)
print("through")
"""

PYTHON = {
    "open_w": "open('old.txt', 'w').write('new')",
    "open_a": "open('old.txt', 'a').write('new')",
    "open_x": "open('old.txt', 'x').write('new')",
    "open_rplus": "open('old.txt', 'r+').write('N')",
    "open_w_twice": "open('old.txt', 'w').write('1'); open('old.txt', 'a').write('2')",
    "open_bytes": "open(b'old.txt', 'w').write('new')",
    "open_folder": "open('sub', 'w').write('new')",
    "open_new": "open('new.txt', 'w').write('new'); say(open('new.txt').read())",
    "os_open": "fd = os.open('old.txt', os.O_WRONLY | os.O_TRUNC); os.write(fd, b'new'); os.close(fd)",
    "os_open_append": "fd = os.open('old.txt', os.O_WRONLY | os.O_APPEND); os.write(fd, b'new'); os.close(fd)",
    "os_open_exclusive": "os.open('old.txt', os.O_WRONLY | os.O_CREAT | os.O_EXCL)",
    "truncate": "os.truncate('old.txt', 1)",
    "path_write": "pathlib.Path('old.txt').write_text('new')",
    "path_touch": "pathlib.Path('old.txt').touch()",
    "path_unlink": "pathlib.Path('old.txt').unlink(); say(pathlib.Path('old.txt').exists())",
    "path_rename": "pathlib.Path('old.txt').rename('sub/renamed.txt')",
    "path_replace": "pathlib.Path('old.txt').replace('other.txt')",
    "remove": "os.remove('old.txt'); say(os.path.exists('old.txt'), os.access('old.txt', os.R_OK))",
    "remove_twice": "os.remove('old.txt'); os.remove('old.txt')",
    "remove_and_read": "os.remove('old.txt'); open('old.txt')",
    "remove_and_write": "os.remove('old.txt'); open('old.txt', 'x').write('new')",
    "remove_new": "open('new.txt', 'w').write('n'); os.remove('new.txt')",
    "rename": "os.rename('old.txt', 'new.txt')",
    "rename_over": "os.rename('old.txt', 'other.txt')",
    "rename_gone": "os.remove('old.txt'); os.rename('old.txt', 'new.txt')",
    "rename_folder": "os.rename('sub', 'sub.backup'); os.makedirs('sub')",
    "rename_over_full_folder": "os.mkdir('new'); os.rename('new', 'sub')",
    "rename_over_empty_folder": "os.mkdir('new'); open('new/a', 'w').write('a'); os.rename('new', 'empty')",
    "rotate": "open('old.txt', 'w').write('1'); os.rename('old.txt', 'old.txt.1'); open('old.txt', 'w').write('2')",
    "atomic": "open('old.txt.tmp', 'w').write('new'); os.replace('old.txt.tmp', 'old.txt')",
    "atomic_twice": "for i in range(2): open('t', 'w').write(str(i)); os.replace('t', 'old.txt')",
    "replace_link": "open('t', 'w').write('new'); os.replace('t', 'link.txt')",
    "write_link": "open('link.txt', 'w').write('new'); say(open('old.txt').read())",
    "remove_link": "os.remove('link.txt'); say(os.path.lexists('link.txt'))",
    "new_link": "os.symlink('old.txt', 'l'); open('l', 'w').write('new'); say(open('old.txt').read())",
    "link_turned": (
        "os.mkdir('new'); os.symlink('new', 'latest'); open('latest/inner.txt', 'w').write('1')\n"
        "os.remove('latest'); os.symlink('sub', 'latest'); open('latest/inner.txt', 'w').write('2')\n"
        "say(open('sub/inner.txt').read(), open('new/inner.txt').read())\n"
    ),
    "hard_link": "os.link('old.txt', 'h'); say(open('h').read()); os.remove('old.txt')",
    "mkdir": "os.mkdir('sub')",
    "rmdir_full": "os.rmdir('sub')",
    "rmdir": "os.rmdir('empty'); say(os.path.isdir('empty'))",
    "rmdir_emptied": "os.remove('sub/inner.txt'); os.rmdir('sub'); say(os.path.exists('sub'))",
    "rmtree": "import shutil; shutil.rmtree('sub'); say(os.path.exists('sub'), os.path.exists('sub/inner.txt'))",
    "rmtree_and_make": (
        "import shutil; open('sub/inner.txt', 'w').write('x'); shutil.rmtree('sub'); os.makedirs('sub/a/b'); "
        "open('sub/a/b/c.txt', 'w').write('new'); open('sub/inner.txt', 'x').write('new'); say(os.listdir('sub/a'))"
    ),
    "rmtree_and_write": "import shutil; shutil.rmtree('sub'); open('sub/inner.txt', 'w')",
    "rmtree_twice": "import shutil; shutil.rmtree('sub'); os.mkdir('sub'); shutil.rmtree('sub'); shutil.rmtree('sub')",
    "rmtree_by_hand": (
        "for top, folders, files in os.walk('sub', topdown=False):\n"
        "    for name in files: os.remove(os.path.join(top, name))\n"
        "    os.rmdir(top)\n"
    ),
    "copy_over": "import shutil; shutil.copy2('other.txt', 'old.txt')",
    "copytree": "import shutil; shutil.copytree('sub', 'copy'); shutil.copytree('copy', 'sub', dirs_exist_ok=True)",
    "move": "import shutil; shutil.move('old.txt', 'empty')",
    "move_folder": "import shutil; shutil.move('sub', 'moved')",
    "move_over": "import shutil; open('n', 'w').write('new'); shutil.move('n', 'old.txt')",
    "chmod": "os.chmod('old.txt', 0o600)",
    "utime": "os.utime('old.txt', (1, 1))",
    "zip": "import zipfile; zipfile.ZipFile('old.txt', 'w').close()",
    "unpack": (
        "import tarfile\n"
        "with tarfile.open('t.tar', 'w') as tar: tar.add('other.txt', 'old.txt')\n"
        "with tarfile.open('t.tar') as tar: tar.extractall('.', filter='data')\n"
        "os.remove('t.tar')\n"
    ),
    "in_place": "import fileinput\nfor line in fileinput.input('old.txt', inplace=True): print(line.upper())",
    "log": "import logging; h = logging.FileHandler('old.txt'); h.emit(logging.makeLogRecord({'msg': 'x'})); h.close()",
    "temporary": (
        "import tempfile\n"
        "with tempfile.NamedTemporaryFile('w', dir='.', delete=False) as file: file.write('new')\n"
        "os.replace(file.name, 'old.txt')\n"
    ),
    "by_descriptor": "f = os.open('sub', os.O_RDONLY); say(os.listdir(f), os.stat('inner.txt', dir_fd=f).st_size)",
    "opener": (
        "fd = os.open('sub', os.O_RDONLY | os.O_DIRECTORY)\n"
        "with open('inner.txt', 'w', opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as f: f.write('new')\n"
        "say(open('sub/inner.txt').read(), os.stat('inner.txt', dir_fd=fd).st_size)\n"
        "with open('new.txt', 'w', opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as f: f.write('new')\n"
        "say(sorted(os.listdir(fd)), os.path.lexists('new.txt'))\n"
    ),
    "below_a_descriptor": (
        "fd = os.open('sub', os.O_RDONLY | os.O_DIRECTORY)\n"
        "os.chmod('inner.txt', 0o644, dir_fd=fd); os.utime('inner.txt', (1, 1), dir_fd=fd)\n"
        "os.rename('inner.txt', 'renamed.txt', src_dir_fd=fd, dst_dir_fd=fd)\n"
        "say(os.access('inner.txt', os.F_OK, dir_fd=fd), sorted(os.listdir(fd)), [e.name for e in os.scandir(fd)])\n"
        "os.mkdir('made', dir_fd=fd); os.symlink('renamed.txt', 'l', dir_fd=fd)\n"
        "os.replace('old.txt', 'made/old.txt', dst_dir_fd=fd); os.link('other.txt', 'o', dst_dir_fd=fd)\n"
        "os.unlink('renamed.txt', dir_fd=fd); os.symlink('o', 'renamed.txt', dir_fd=fd)\n"
        "say(os.stat('l', dir_fd=fd, follow_symlinks=False).st_mode, os.stat('l', dir_fd=fd).st_size)\n"
    ),
    "remove_below_descriptors": (
        "import shutil\n"
        "for top, folders, files, fd in os.fwalk('sub', topdown=False):\n"
        "    for name in files: os.unlink(name, dir_fd=fd)\n"
        "say(os.listdir('sub')); os.rmdir('sub')\n"
        "fd = os.open('.', os.O_RDONLY); os.rmdir('empty', dir_fd=fd); say(sorted(os.listdir(fd)))\n"
    ),
    "times_of_a_descriptor": "fd = os.open('old.txt', os.O_RDONLY); os.utime(fd, (1, 1)); os.fchmod(fd, 0o600)",
    "file_io": (
        "import io\n"
        "class Mine(io.FileIO, io.RawIOBase): pass\n"
        "with io.FileIO('old.txt', 'w') as file: file.write(b'new')\n"
        "with Mine('other.txt', 'a') as file: file.write(b'x')\n"
        "with io.FileIO('old.txt') as f, Mine('other.txt') as m, open('old.txt', 'rb', 0) as raw:\n"
        "    say(f.read(), m.readall(), isinstance(raw, io.FileIO), isinstance(raw, Mine), isinstance(m, io.FileIO))\n"
        "    say(issubclass(Mine, io.RawIOBase), isinstance(f, io.RawIOBase), issubclass(type(raw), io.FileIO))\n"
        "io.BufferedWriter(io.FileIO(b'sub/inner.txt', 'r+')).write(b'I')\n"
        "try: io.FileIO('old.txt', 'x')\n"
        "except FileExistsError: say('exists')\n"
    ),
    "link_renewed": (
        "open('new.txt', 'w').write('new'); os.unlink('link.txt'); os.symlink('new.txt', 'link.txt')\n"
        "say(open('link.txt').read(), os.readlink('link.txt'), os.path.realpath('link.txt').split('/')[-1])\n"
        "open('link.txt', 'a').write('er'); say(open('new.txt').read(), os.path.samefile('link.txt', 'new.txt'))\n"
    ),
    "link_renewed_to_old": (
        "os.unlink('link.txt'); os.symlink('other.txt', 'link.txt'); open('link.txt', 'w').write('n')\n"
        "say(open('other.txt').read()); os.unlink('link.txt'); os.symlink(os.path.abspath('old.txt'), 'link.txt')\n"
        "open('link.txt', 'w').write('m'); say(open('old.txt').read()); os.truncate('link.txt', 0)\n"
        "os.unlink('link.txt'); say(os.path.exists('link.txt'), os.path.exists('old.txt'))\n"
    ),
    "link_replaced": (
        "os.symlink('other.txt', 't'); os.replace('t', 'link.txt')\n"
        "say(open('link.txt').read(), pathlib.Path('link.txt').resolve().name, os.readlink('link.txt'))\n"
    ),
    "link_to_folder_renewed": (
        "os.mkdir('run'); os.unlink('current'); os.symlink('run', 'current'); os.makedirs('current/deep')\n"
        "open('current/inner.txt', 'w').write('new')\n"
        "say(open('current/inner.txt').read(), open('run/inner.txt').read())\n"
        "say(sorted(os.listdir('current')), os.listdir('run/deep'), open('sub/inner.txt').read())\n"
        "os.rename('current/inner.txt', 'current/deep/moved.txt'); os.rmdir('empty'); os.symlink('run/deep', 'empty')\n"
        "os.remove('empty/moved.txt'); say(os.listdir('run/deep')); os.symlink('../../old.txt', 'empty/l')\n"
        "say(open('empty/l').read()); open('empty/l', 'w').write('w'); say(open('old.txt').read())\n"
    ),
    "folder_for_link": (
        "os.unlink('current'); os.mkdir('current'); open('current/inner.txt', 'w').write('new')\n"
        "say(os.listdir('sub'), open('sub/inner.txt').read(), open('current/inner.txt').read())\n"
    ),
    "link_gone": "os.unlink('current'); say(os.path.exists('current/inner.txt')); open('current/new.txt', 'w')",
    "links_in_folders": (
        "os.symlink('../other.txt', 'sub/l'); os.rename('sub', 'moved'); os.symlink('moved', 'sub')\n"
        "say(open('moved/l').read(), open('sub/l').read()); open('sub/l', 'w').write('w')\n"
        "say(open('other.txt').read())\n"
    ),
    "links_in_a_circle": "os.unlink('link.txt'); os.symlink('link.txt', 'link.txt'); open('link.txt')",
    "link_itself": (
        "open('old.txt', 'w').write('new'); p = pathlib.Path('link.txt')\n"
        "say(p.is_symlink(), p.lstat().st_size, os.stat('link.txt', follow_symlinks=False).st_mode, p.stat().st_size)\n"
        "p.unlink(); say(p.is_symlink()); p.symlink_to('old.txt'); say(p.read_text())\n"
        "os.utime('current', (1, 1), follow_symlinks=False)\n"
    ),
    "entries": (
        "open('old.txt', 'w').write('12345678'); os.remove('other.txt'); os.rmdir('empty'); os.mkdir('empty')\n"
        "for e in sorted(os.scandir('.'), key=lambda e: e.name):\n"
        "    say(repr(e), e.path, os.fspath(e), e.stat().st_size if e.is_file() else 0, e.is_dir(), e.is_symlink())\n"
        "    assert e.inode() == os.lstat(e).st_ino and e.is_dir(follow_symlinks=False) <= e.is_dir()\n"
        "    assert e.stat(follow_symlinks=False).st_mtime_ns == os.lstat(e.path).st_mtime_ns\n"
        "say(sorted(os.listdir(b'.')), *(sorted(e.path for e in os.scandir(x)) for x in (b'.', None, 'sub/')))\n"
        "fd = os.open('.', os.O_RDONLY); say(sorted(e.path for e in os.scandir(fd)))\n"
    ),
    "remade_folder": (
        "import glob, shutil; shutil.rmtree('sub'); os.makedirs('sub/ckpt'); open('sub/ckpt/a.txt', 'w').write('x')\n"
        "sub = pathlib.Path('sub'); say([str(p) for p in sub.rglob('*')], [str(p) for p in sub.iterdir()])\n"
        "say([e.path for e in os.scandir('sub')], glob.glob('sub/**', recursive=True))\n"
        "say(list(os.walk('sub', topdown=False)))\n"
        "shutil.copytree('sub', 'copy'); say(sorted(p.name for p in pathlib.Path('copy').rglob('*')))\n"
    ),
    "current_folder": (
        "import shutil; shutil.rmtree('sub'); os.makedirs('sub/ckpt'); top = os.getcwd(); os.chdir('sub/ckpt')\n"
        "say(os.path.relpath(os.getcwd(), top), pathlib.Path.cwd().name, os.getcwdb() == os.getcwd().encode())\n"
        "open('a.txt', 'w').write('new'); open('../../old.txt', 'w').write('from below')\n"
        "say(os.listdir(), os.listdir('..'), sorted(os.listdir('../..')), [e.path for e in os.scandir()])\n"
        "os.rename('a.txt', '../b.txt'); os.mkdir('d'); os.symlink('../b.txt', 'l')\n"
        "open('../../fresh', 'w').write('f')\n"
        "say(open('l').read(), os.stat('../../other.txt').st_size, open('../../old.txt').read())\n"
        "os.chdir('../..'); say(os.getcwd() == top, open('sub/b.txt').read())\n"
        "fd = os.open('sub/ckpt', os.O_RDONLY); os.fchdir(fd); say(os.path.relpath(os.getcwd(), top), os.listdir(fd))\n"
    ),
    "current_folder_gone": "import shutil; shutil.rmtree('sub'); os.chdir('sub')",
    "lock_file": "open('uv.lock', 'w').write('new'); say(open('uv.lock').read()); os.remove('uv.lock')",
    "sqlite": (
        "import sqlite3\n"
        "for i in range(2):\n"
        "    base = sqlite3.connect('data.db'); base.execute('insert into t values (7)'); base.commit()\n"
        "    say(base.execute('select count(*) from t').fetchall()); base.close()\n"
        "base = sqlite3.connect('file:data.db?mode=ro', uri=True); say(base.execute('select * from t').fetchall())\n"
        "os.remove('data.db')\n"
    ),
    "sqlite_new": (
        "import sqlite3; base = sqlite3.connect('n.db'); base.execute('create table t (x)'); base.close(); "
        "os.remove('n.db')"
    ),
    "bz2": "import bz2; bz2.open('old.txt', 'w').write(b'new'); say(bz2.BZ2File('old.txt', 'a').write(b'er'))",
    "tar_bz2": (
        "import tarfile\nwith tarfile.open('old.txt', 'w:bz2') as packed: packed.add('other.txt')\n"
        "say(tarfile.open('old.txt').getnames()); os.remove('old.txt')"
    ),
    "name": (
        "file = open('old.txt', 'w'); say(file.name, file.buffer.name, open(b'old.txt').name, repr(file))\n"
        "say(open(pathlib.Path('old.txt'), 'rb', 0).name, io.FileIO('old.txt', 'a').name)\n"
        "file.close(); os.rename(file.name, 'new.txt'); say(os.path.exists('old.txt'))"
    ),
    "process_in_removed_folder": (
        "import shutil, subprocess; shutil.rmtree('sub'); os.mkdir('sub')\n"
        "say(subprocess.run('ls; echo new > inner.txt', shell=True, cwd='sub', capture_output=True).stdout)\n"
        "say(subprocess.Popen(['cat', 'inner.txt'], 0, None, None, -1, None, None, True, False, 'sub').stdout.read())\n"
        "shutil.rmtree('sub')\n"
        "try: subprocess.call('ls', cwd='sub')\n"
        "except FileNotFoundError as error: say(error.filename)"
    ),
    "fork": (
        "pid = os.fork()\n"
        "if pid == 0:\n    open('old.txt', 'w').write('of a child'); os._exit(0)\n"
        "os.waitpid(pid, 0); say(open('old.txt').read())\n"
    ),
}
"""Python's own calls. Each is exec'ed in a folder that ``prepare`` made."""

HARMLESS = {
    "open_x", "open_folder", "open_new", "os_open_exclusive", "remove_new", "rename_over_full_folder", "mkdir",
    "rmdir_full", "by_descriptor", "sqlite_new",
}  # fmt: skip
"""Those that fail under plain Python, or touch nothing of the user's."""


def prepare(base: Path, names: list[str]) -> None:
    """For each attack a folder of what a user may have."""
    import sqlite3

    for name in names:
        folder = base / name
        (folder / "sub").mkdir(parents=True)
        (folder / "empty").mkdir()
        for path, text in (
            ("old.txt", "old"), ("other.txt", "other"), ("uv.lock", "of uv"), ("sub/inner.txt", "inner"),
        ):  # fmt: skip
            (folder / path).write_text(text)
        (folder / "link.txt").symlink_to("old.txt")
        (folder / "current").symlink_to("sub")
        if name == "sqlite":
            database = sqlite3.connect(folder / "data.db")
            database.execute("create table t (x)")
            database.execute("insert into t values (1)")
            database.commit()
            database.close()


def state(base: Path) -> State:
    """Everything below the folder, as it is: any change of content, mode, time or name shows."""
    found: State = {}
    for here, folders, names in os.walk(base):
        for name in (*folders, *names):
            path = Path(here, name)
            status = path.lstat()
            content = os.readlink(path).encode() if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(base))] = (status.st_mode, 0 if path.is_dir() else status.st_mtime_ns, content)
    return found
