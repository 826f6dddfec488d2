"""What a stranger gets: the public names, the wheel, the README."""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import pytest

import dpjax
from dpjax import cli
from dpjax.cli import _process

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dpjax"
# Never imported by the rest of the package: terminal, pictures, integrations.
OUTSIDE = {"__main__", "cli", "doctor", "interop", "plotting", "training"}


def python(code: str, **environment: str) -> str:
    """Runs ``code`` in a fresh interpreter and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestPublicNames:
    @pytest.mark.parametrize("name", dpjax.__all__)
    def test_resolves_and_is_documented(self, name):
        value = getattr(dpjax, name)
        assert inspect.getdoc(value)
        home = value.__name__ if inspect.ismodule(value) else value.__module__
        assert home.startswith("dpjax.")

    def test_type_checkers_see_the_same_names_in_the_same_places(self):
        tree = ast.parse((PACKAGE / "__init__.py").read_text())
        seen = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "dpjax":
                for alias in node.names:
                    assert alias.asname == alias.name, "X as X is what marks a name as public"
                    seen[alias.name] = node.module.partition(".")[2] or None
        assert seen == dpjax._HOME

    def test_unknown_name(self):
        with pytest.raises(AttributeError, match="no attribute 'epsilom'"):
            dpjax.epsilom  # noqa: B018

    def test_dir(self):
        assert set(dpjax.__all__) <= set(dir(dpjax))


class TestImport:
    def test_changes_no_setting_and_starts_no_backend(self):
        code = """
import jax
before = dict(jax.config.values)
import dpjax
for name in dpjax.__all__:
    getattr(dpjax, name)
assert dict(jax.config.values) == before
"""
        python(code, JAX_PLATFORMS="no_such_platform")  # a backend could not even be started

    def test_imports_nothing_heavy(self):
        code = """
import sys, dpjax
for name in dpjax.__all__:
    getattr(dpjax, name)
print({"matplotlib", "typer", "rich", "pandas", "dp_accounting", "optax", "chex"} & set(sys.modules))
"""
        assert python(code).strip() == "set()"

    def test_core_never_imports_the_outside(self):
        for path in PACKAGE.rglob("*.py"):
            if path == PACKAGE / "__init__.py" or OUTSIDE & {path.stem, *path.relative_to(PACKAGE).parts}:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpjax"):
                    imported = {node.module.rpartition(".")[2], *(alias.name for alias in node.names)}
                    assert not imported & OUTSIDE, path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


class TestWheel:
    def test_holds_every_file_of_the_package_and_no_other(self, wheel):
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        outside = {
            path.relative_to(ROOT).as_posix()
            for path in PACKAGE.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert inside == outside
        assert {"dpjax/py.typed", "dpjax/_references.json"} <= inside

    def test_metadata(self, wheel):
        info = f"dpjax-{dpjax.__version__}.dist-info"
        metadata = wheel.read(f"{info}/METADATA").decode()
        assert f"\nVersion: {dpjax.__version__}\n" in metadata
        assert "\nRequires-Python: >=3.11\n" in metadata
        assert "dpjax = dpjax.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()
        assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")

    def test_dependencies_have_no_upper_cap(self, wheel):
        metadata = wheel.read(f"dpjax-{dpjax.__version__}.dist-info/METADATA").decode()
        required = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.MULTILINE)
        assert {re.match(r"[\w-]+", r)[0] for r in required} == {"jax", "jaxlib", "numpy", "optax"}
        assert not [r for r in required if "<" in r or "==" in r or "~=" in r]


class TestReadme:
    """The Python examples in the README are run as doctests; here is the rest of what it promises."""

    TEXT = (ROOT / "README.md").read_text()

    def test_every_figure_is_filled_in(self):
        assert "TODO" not in self.TEXT

    def test_quickstart_prints_what_the_readme_says(self, tmp_path):
        command = [sys.executable, str(ROOT / "examples" / "quickstart.py")]
        cache = jax.config.jax_compilation_cache_dir  # shared with the other tests
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache} if cache else None
        printed = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout
        assert f"```text\n{printed}```" in self.TEXT
        assert (tmp_path / "epsilon_sweep.png").stat().st_size > 10_000

    def test_commands_print_what_the_readme_says(self, capsys, monkeypatch):
        monkeypatch.setattr(_process, "configure_jax", lambda *args, **kwargs: "off")
        blocks = re.findall(r"```console\n\$ dpjax (.*)\n((?:.+\n)*)```", self.TEXT)
        assert blocks
        for command, output in blocks:
            assert cli.run(shlex.split(command)) == 0
            assert capsys.readouterr().out == output

    def test_files_that_it_refers_to_exist(self):
        links = re.findall(r"\]\(([^):#]+)[^):]*\)", self.TEXT)
        assert links
        assert not [link for link in links if not (ROOT / link).exists()]

    @pytest.mark.skipif(sys.platform == "win32", reason="no signals")
    @pytest.mark.parametrize(
        ("code", "status", "says"),
        [
            ("import os; os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL (the machine ran out of memory"),
            ("import os; os.kill(os.getpid(), 11)", 139, "was ended by SIGSEGV; it did not finish."),
            ("raise SystemExit(3)", 3, ""),
            ("", 0, ""),
        ],
    )
    def test_what_was_killed_is_said(self, code, status, says):
        """pytest that runs out of memory ends in the middle of a line."""
        run = f"import dev, sys; dev.run(sys.executable, '-c', {code!r})"
        done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == status and len(done.stderr.splitlines()) == bool(says)
        assert says in done.stderr

    def test_commands_are_tasks_of_dev_py(self):
        tasks = set(re.findall(r"python3 dev\.py (\w+)", self.TEXT))
        assert tasks >= {"quickstart", "test", "docs"}
        done = subprocess.run([sys.executable, "dev.py", "--help"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0
        assert all(task in done.stdout for task in tasks)
