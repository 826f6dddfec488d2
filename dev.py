#!/usr/bin/env python3
"""Sets up a virtual environment and runs a task of the project in it.

    python3 dev.py quickstart   a certified epsilon, its gradient and a picture
    python3 dev.py test         the tests (further arguments go to pytest)
    python3 dev.py docs         executes the notebooks and builds the documentation in docs/_build
    python3 dev.py lint         ruff and pyright
    python3 dev.py pythons      the oldest and the newest supported interpreter found here

Needs nothing but Python. The environment is .venv in this folder (.venv-X.Y when .venv was made with another version
of Python); it is reused while pyproject.toml stays the same. $PYTHON names the interpreter to make it with.
"""

# Whatever "python3" is on a machine must be able to read this file, if only to look for a newer one: no syntax or
# library newer than Python 3.7.

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import NoReturn

ROOT = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 11)
NEEDED = "Python {}.{} or newer".format(*OLDEST)
WINDOWS = os.name == "nt"

EXTRAS = {"quickstart": ["cli", "plot"], "test": ["test"], "docs": ["docs"], "lint": ["lint", "test"]}


def main():
    """Runs the task named on the command line; exits with its status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("task", choices=[*EXTRAS, "pythons"])
    parser.add_argument("--devices", type=int, help="test: pretend that the CPU is this many devices")
    args, rest = parser.parse_known_args()
    if rest and args.task != "test":
        parser.error("unrecognized arguments: " + " ".join(rest))
    if args.task == "pythons":
        found = supported_interpreters()
        print("\n".join(found[v] for v in sorted({min(found), max(found)})) if found else "none", flush=True)
        sys.exit(0 if found else 1)
    os.chdir(ROOT)
    python = environment(EXTRAS[args.task])
    globals()[args.task](python, args, rest)


def quickstart(python, args, rest):
    """The main job."""
    run(python, os.path.join("examples", "quickstart.py"))


def test(python, args, rest):
    """The tests, on as many cores as there are (two are enough)."""
    if args.devices:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={args.devices}".strip()
    workers = "0" if "-s" in rest or "--pdb" in rest else str(min(2, os.cpu_count() or 1))
    run(python, "-m", "pytest", "-n", workers, "--dist", "worksteal", "--durations", "10", *rest)


def docs(python, args, rest):
    """Executes every notebook in place of a reader, and builds the site; fails when a cell does, or on a warning."""
    run(python, os.path.join("notebooks", "execute.py"))
    site = os.path.join("docs", "_build")
    run(python, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "docs", site)
    say("The documentation is at " + os.path.join(site, "index.html"))


def lint(python, args, rest):
    """Style and types; all of it, so that one run reports everything."""
    commands = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["pyright", "--pythonpath", python]]
    statuses = []
    for command in commands:
        statuses.append(subprocess.call([python, "-m", *command]))
        if statuses[-1] < 0:
            say_killed([python, "-m", *command], -statuses[-1])
    sys.exit(1 if any(statuses) else 0)


def run(*command):
    """Runs a command and exits with its status if that is not 0; a signal that ended it is said, as a shell would."""
    status = subprocess.call(command)
    if status < 0:
        say_killed(command, -status)
        sys.exit(128 - status)
    if status:
        sys.exit(status)


def say_killed(command, number):
    """Names the signal, and what most often sends it."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    why = " (the machine ran out of memory, or somebody stopped it)" if name == "SIGKILL" else ""
    words = " ".join(os.path.basename(word) for word in command[:3])
    print(f"dev.py: {words} was ended by {name}{why}; it did not finish.", file=sys.stderr, flush=True)


def environment(extras):
    """Returns the interpreter of a virtual environment in which dpjax is installed with ``extras``."""
    base, version = choose_interpreter()
    dotted = "{}.{}".format(*version)
    folder = ".venv"
    if os.path.isdir(folder) and venv_version(folder) not in (None, version):
        folder = f".venv-{dotted}"
    python = os.path.join(ROOT, venv_python(folder))
    stamp_file = os.path.join(folder, "dpjax-stamp.json")
    with open("pyproject.toml", "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    fresh = {"pyproject": digest, "root": ROOT}
    stamp = read_json(stamp_file)
    usable = venv_version(folder) == version and probe(python, "import pip") is not None
    known = stamp.pop("extras", []) if usable and stamp.get("root") == ROOT else []
    if usable and stamp == fresh and set(extras) <= set(known):
        return python
    if not usable:
        if os.path.isdir(folder) and not os.path.exists(stamp_file):
            fail(
                f"{folder} was not made by dev.py and is no environment with Python {dotted} and pip; please remove it."
            )
        say(f"Making {folder} with Python {dotted} ({base})")
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        write_json(stamp_file, {})  # marks the folder as ours, should this be interrupted
        if subprocess.call([base, "-m", "venv", folder]):
            fail(
                "this Python cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv); "
                "PYTHON=... names another."
            )
    wanted = sorted({*known, *extras})
    names = ",".join(wanted)
    say(f"Installing dpjax[{names}] and what it needs into {folder} (once; a minute or two)")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--editable"]
    if subprocess.call([*pip, f".[{names}]"]):
        fail("pip could not install dpjax; its message is above.")
    write_json(stamp_file, {**fresh, "extras": wanted})
    return python


def choose_interpreter():
    """The interpreter to make the environment with, and its version: $PYTHON, this one, or the newest found."""
    asked = os.environ.get("PYTHON")
    if asked:
        path = shutil.which(asked) or asked
        version = interpreter_version(path)
        if version is None or version < OLDEST:
            fail(f"PYTHON={asked} is not {NEEDED} that can make a virtual environment.")
        return path, version
    if sys.version_info[:2] >= OLDEST:
        return sys.executable, sys.version_info[:2]
    found = supported_interpreters()
    if not found:
        fail(f"needs {NEEDED}, and found none.")
    return found[max(found)], max(found)


def supported_interpreters():
    """Version -> path of the supported interpreters on PATH and under pyenv that can make an environment."""
    with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as f:
        supported = {(3, int(minor)) for minor in re.findall(r"Python :: 3\.(\d+)", f.read())}
    pyenv = os.path.join(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if os.path.isdir(pyenv):
        folders += [os.path.join(pyenv, name, "bin") for name in sorted(os.listdir(pyenv))]
    found = {}
    for folder in folders:
        for name in ["python3", *(f"python3.{minor}" for _, minor in sorted(supported))]:
            path = os.path.join(folder, name + (".exe" if WINDOWS else ""))
            if not os.access(path, os.X_OK):
                continue
            version = interpreter_version(path)
            if version in supported and version not in found:
                found[version] = path
    return found


def interpreter_version(path):
    """The version of a working interpreter that can make an environment, or None."""
    code = "import sys, venv, ensurepip; sys.version_info[3] == 'final' and print(*sys.version_info[:2])"
    out = probe(path, code)
    return tuple(int(x) for x in out.split()) if out else None


def venv_python(folder):
    """The path of the interpreter in a virtual environment."""
    return os.path.join(folder, "Scripts", "python.exe") if WINDOWS else os.path.join(folder, "bin", "python")


def venv_version(folder):
    """The version of Python in a virtual environment, or None if it has none that works."""
    out = probe(venv_python(folder), "import sys; print(*sys.version_info[:2])")
    return tuple(int(x) for x in out.split()) if out else None


def probe(python, code):
    """What ``code`` prints under an interpreter, or None if it fails."""
    try:
        done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode() if done.returncode == 0 else None


def read_json(path):
    """The object in a JSON file, or {} if there is none."""
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return {}


def write_json(path, record):
    """Writes an object to a JSON file."""
    with open(path, "w") as f:
        json.dump(record, f)


def say(message):
    """Prints at once, so that it stands before what a child process prints."""
    print("dev.py: " + message, flush=True)


def fail(message: str) -> NoReturn:
    """Prints one line and exits."""
    print("dev.py: " + message, file=sys.stderr, flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
