"""What all tests share: compiled programs are kept between runs, and thrown out of memory before there are too many."""

import importlib.util
from pathlib import Path

import hypothesis
import jax
import pytest

# The same examples in every run; `--hypothesis-profile searching` looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("searching", deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs in pytest's cache folder, so that workers and later runs need not compile them again."""
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


# Examples that need a package which is not there.
_INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("dp_accounting", "jax_privacy")}
collect_ignore_glob = [] if _INSTALLED["dp_accounting"] else ["dpjax/interop/*"]
collect_ignore = [] if _INSTALLED["jax_privacy"] else ["dpjax/interop/_jax_privacy.py"]
if not all(_INSTALLED.values()):
    collect_ignore.append("docs/howto/interop.md")

# Pages whose examples take long: many kinds of questions, each compiled anew.
_SLOW_PAGES = {
    f"docs/{page}.md" for page in ("tutorial", "concepts/claims", "howto/adding", "howto/noise", "howto/stopping")
}

# What depends on the versions of Python, JAX and other packages. The rest, the formulas, CI checks on one version only.
_VERSIONED = (
    "tests/adaptive/test_adaptive_filters.py",
    "tests/adaptive/test_adaptive_odometers.py",
    "tests/test_cli.py",
    "tests/test_contract.py",
    "tests/test_interop_jax_privacy.py",
    "tests/test_packaging.py",
    "tests/test_sweeps.py",
    "tests/training",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of formulas, the slow pages, and who may ask suspicious questions."""
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        if not path.startswith(_VERSIONED):
            item.add_marker(pytest.mark.formula)
        if path in _SLOW_PAGES:
            item.add_marker(pytest.mark.slow)
        if path.startswith("tests/"):  # which ask about extremes; an example that is questioned fails
            item.add_marker(pytest.mark.filterwarnings("ignore::dpjax.SuspiciousInputWarning"))


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Each compiled program holds memory maps, of which Linux grants a process 65,530: beyond, the compiler crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
