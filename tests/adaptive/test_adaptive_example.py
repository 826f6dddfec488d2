"""The worked example prints what the README says, and keeps its budget."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_prints_what_the_readme_says(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "adaptive_queries.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in (ROOT / "README.md").read_text()
    epsilons, spent = (
        [float(x) for x in re.findall(name + r" ([0-9.]+)  ", done.stdout)] for name in ("epsilon", "spent")
    )
    assert len(set(epsilons)) > 3 and spent == sorted(spent) and spent[-1] <= 1.0
