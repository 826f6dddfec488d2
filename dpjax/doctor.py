"""What a bug report needs to know, and a check of the installed library against values known by other means."""

import importlib.metadata
import json
import platform
import sys
from importlib import resources
from typing import Any, NamedTuple

import jax
import numpy as np

import dpjax

REFERENCES = "_references.json"
DIGITS = 1e-14  # how well the references themselves are known, relative


class Check(NamedTuple):
    """One question whose answer is known."""

    question: str
    finding: str
    passed: bool


def examine() -> dict[str, str]:
    """Versions, devices and precision of this installation."""
    versions = {name: _version(name) for name in ("jax", "jaxlib", "numpy", "optax")}
    devices = [f"{device.platform} ({device.device_kind})" for device in jax.devices()]
    return {
        "dpjax": f"{dpjax.__version__} ({resources.files(dpjax)})",
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        **versions,
        "devices": ", ".join(f"{devices.count(d)} x {d}" for d in dict.fromkeys(devices)),
        "precision": _precision(),
    }


def self_check() -> list[Check]:
    """Asks the library every stored question; an answer passes when its certified interval is right and narrow."""
    stored = json.loads((resources.files(dpjax) / REFERENCES).read_text(encoding="utf-8"))
    return [_check(row) for row in stored["rows"]]


def _check(row: dict[str, Any]) -> Check:
    run = dpjax.dpsgd(row["noise_multiplier"], row["sampling_probability"], row["steps"])
    asked, answer = ("delta", "epsilon") if "delta" in row["given"] else ("epsilon", "delta")
    question = f"{answer} of {run}, {asked} = {row['given'][asked]}, {row['adjacency']}"
    truth = row[answer]
    query = dpjax.epsilon_bounds if answer == "epsilon" else dpjax.delta_bounds
    try:
        bounds = query(run, **row["given"], adjacency=dpjax.Adjacency(row["adjacency"]))
        lower, upper = float(bounds.lower), float(bounds.upper)
    except Exception as error:  # a broken installation may fail in any way, and the other questions still count
        return Check(question, f"{type(error).__name__}: {error}", False)
    slack = DIGITS * truth
    right = lower <= truth + slack and upper >= truth - slack
    finding = f"[{lower!r}, {upper!r}], reference {truth!r}"
    return Check(question, finding, right and upper - lower <= row["rtol"] * truth)


def _precision() -> str:
    with jax.enable_x64(True):
        try:
            third = jax.numpy.float64(1.0) / 3.0
            doubles = third.dtype == np.float64 and abs(float(third) - 1 / 3) < 1e-15
        except Exception as error:  # some accelerators have no float64
            doubles = False
            print(error, file=sys.stderr)
    flag = "on" if jax.config.jax_enable_x64 else "off"  # type: ignore[attr-defined]
    return f"float64 {'works' if doubles else 'does not work'} on the default device; jax_enable_x64 is {flag}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
