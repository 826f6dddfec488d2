"""dpjax where other accountants are used: dp_accounting, jax_privacy and Opacus.

- `from_dp_event`, `to_dp_event`: dp_accounting's events to mechanisms and back; `from_neighboring_relation` and
  `to_neighboring_relation`: the words for neighbours.
- `DpjaxAccountant`: a `dp_accounting.PrivacyAccountant`, certified. It is also a callable from a neighbouring relation to an
  accountant, which is what jax_privacy's execution plans take from the release after 2.0 on.
- `JaxPrivacyConfig`: the same for jax_privacy 2.0's training accountants and their calibration.
- `OpacusAccountant`: for `opacus.accountants.register_accountant`.

Nothing of the other package is imported before it is needed; PyTorch never is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpjax.interop._accountant import DpjaxAccountant as DpjaxAccountant
    from dpjax.interop._events import UnsupportedEvent as UnsupportedEvent
    from dpjax.interop._events import from_dp_event as from_dp_event
    from dpjax.interop._jax_privacy import JaxPrivacyConfig as JaxPrivacyConfig
    from dpjax.interop._neighbors import from_neighboring_relation as from_neighboring_relation
    from dpjax.interop._neighbors import to_neighboring_relation as to_neighboring_relation
    from dpjax.interop._opacus import OpacusAccountant as OpacusAccountant
    from dpjax.interop._to_events import to_dp_event as to_dp_event

_HOME = {
    "DpjaxAccountant": "_accountant",
    "JaxPrivacyConfig": "_jax_privacy",
    "OpacusAccountant": "_opacus",
    "UnsupportedEvent": "_events",
    "from_dp_event": "_events",
    "from_neighboring_relation": "_neighbors",
    "to_dp_event": "_to_events",
    "to_neighboring_relation": "_neighbors",
}
_NEEDS = {"_accountant": ("dp_accounting", "dp-accounting"), "_jax_privacy": ("jax_privacy", "jax-privacy")}
__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    try:
        module = importlib.import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        package, distribution = _NEEDS.get(home, (None, None))
        if (error.name or "").partition(".")[0] not in ("dp_accounting", package):
            raise
        raise ModuleNotFoundError(
            f"dpjax.interop.{name} needs {package}: pip install {distribution}", name=error.name
        ) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
