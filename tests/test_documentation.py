"""The documentation: every block is an example that runs or a known kind of text; names in it exist; all names are in it."""

import contextlib
import doctest
import importlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dpjax
from dpjax import cli, ledger
from dpjax.cli import _process

ROOT = Path(__file__).parent.parent
PAGES = {
    p.relative_to(ROOT).as_posix(): p.read_text()
    for p in sorted((ROOT / "docs").rglob("*.md"))
    if "_build" not in p.parts
}
BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TEXT = {"sh", "text", "bibtex", "{toctree}", "{eval-rst}", "{include}"}  # what is not run
PACKAGES = ("adaptive", "bounded_range", "conversions", "interop", "ledger", "participation", "pure_dp", "training")

RUN_TOML = """version = 1

[[mechanisms]]
type = "PoissonSampled"
sampling_probability = 0.01
mechanism = { type = "Gaussian", noise_multiplier = 1.1 }
count = 1000

[[mechanisms]]
type = "Laplace"
noise_multiplier = 5.0
"""

pytestmark = pytest.mark.skipif(not PAGES, reason="no documentation beside the tests")


def blocks(page):
    return [(kind, body) for _, kind, body in BLOCK.findall(PAGES[page])]


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_an_example(page):
    """pytest runs what has a prompt, and reads what it prints up to an empty line."""
    for kind, body in blocks(page):
        assert kind in TEXT | {"python", "toml", "console"}, f"a block of kind {kind!r} in {page}"
        if kind == "python":
            assert body.lstrip().startswith(">>> ") and re.search(r"\n\s*\n\Z", body), body
        if kind == "toml":
            ledger.from_dict(tomllib.loads(body))


def console(line):
    """What a terminal shows of a line: commands of dpjax run in this process, others in a shell."""
    shown, text = "", ""
    for stage in (part.strip() for part in line.split(" | ")):
        if not stage.startswith("dpjax "):
            stage = stage.replace("python3 -c", f"{shlex.quote(sys.executable)} -c")
            text = subprocess.run(stage, shell=True, input=text, capture_output=True, text=True, check=True).stdout
            continue
        out, err, stdin = io.StringIO(), io.StringIO(), sys.stdin
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            sys.stdin = io.StringIO(text)
            try:
                cli.run(shlex.split(stage)[1:])
            finally:
                sys.stdin = stdin
        shown, text = shown + err.getvalue(), out.getvalue()
    return shown + text


def sessions(page):
    """(line, what it prints) of each console block."""
    for kind, body in blocks(page):
        if kind == "console":
            yield re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page == "docs/command_line.md"))
        for page in PAGES
        if any(sessions(page))
    ],
)
def test_commands_print_what_is_shown(page, tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")  # which compare shows
    monkeypatch.setattr(_process, "configure_jax", lambda *args, **kwargs: "off")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN_TOML)
    commands = set()
    for session in sessions(page):
        for line, shown in session:
            printed = console(line)
            commands |= set(re.findall(r"dpjax (\w+) ?", line))
            assert doctest.OutputChecker().check_output(
                shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            ), f"{line}\n{printed}"
    if page == "docs/command_line.md":
        assert commands == {c.name or c.callback.__name__ for c in cli.app.registered_commands}


def test_every_test_that_is_named_exists():
    source = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    named = {name for text in PAGES.values() for name in re.findall(r"`(test_\w+)(?!\w|\.py)", text)}
    assert len(named) > 15
    assert {name for name in named if f"def {name}(" not in source} == set()


def test_the_reference_has_every_public_name():
    reference = "\n".join(text for page, text in PAGES.items() if page.startswith("docs/reference/"))
    documented = set(re.findall(r"auto(?:class|function|module):: dpjax\.([\w.]+)", reference))
    for group in re.findall(r"automodule:: dpjax\.(\w+)\n   :members: ([\w, ]+)", reference):
        documented |= {f"{group[0]}.{name}" for name in group[1].split(", ")}
    whole = set(re.findall(r"automodule:: dpjax\.([\w.]+)\n   :members:\n", reference))
    same = {"BoundedRange"}  # ExponentialMechanism by another name
    missing = set(dpjax.__all__) - documented - same
    for package in PACKAGES:
        if package in whole:
            continue
        module = importlib.import_module(f"dpjax.{package}")
        names = getattr(module, "__all__", None) or [n for n, x in vars(module).items() if _is_public(module, n, x)]
        missing |= {f"{package}.{n}" for n in names} - documented - whole
    assert missing == set()


def _is_public(module, name, x):
    home = getattr(x, "__module__", "") or ""
    return not name.startswith("_") and callable(x) and home.startswith(module.__name__)


def test_links_between_pages_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
            assert ((ROOT / page).parent / target).exists(), f"{target} in {page}"
