"""One decorator for every record of the library: a frozen dataclass that is a pytree.

Unlike ``jax.tree_util.register_dataclass``, unflattening does not run the constructor. Constructors may therefore
check concrete values and convert integers, while transformations are free to hold tracers, tangents or ``None`` in
the fields.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """A field that is part of the tree's structure (hashed into jit's cache key), not a leaf."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def event(axes: int = 1, **kwargs: Any) -> Any:
    """A field whose last ``axes`` axes belong to one record, such as the outcomes of a distribution: no batch axes."""
    return dataclasses.field(metadata={"event": axes}, **kwargs)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static, event))
def node(cls: type[T]) -> type[T]:
    """Makes ``cls`` a frozen dataclass and registers it as a pytree whose non-static fields are children."""
    data_cls: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    fields = dataclasses.fields(data_cls)
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    meta = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten_with_keys(obj):
        keyed = tuple((jax.tree_util.GetAttrKey(name), getattr(obj, name)) for name in children)
        return keyed, tuple(getattr(obj, name) for name in meta)

    def flatten(obj):
        return tuple(getattr(obj, name) for name in children), tuple(getattr(obj, name) for name in meta)

    def unflatten(aux, values):
        obj = object.__new__(data_cls)
        for name, value in zip(children, values, strict=True):
            object.__setattr__(obj, name, value)
        for name, value in zip(meta, aux, strict=True):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(data_cls, flatten_with_keys, unflatten, flatten)
    return data_cls


def event_axes(record: Any) -> Any:
    """A tree like ``record``, whose leaves are the numbers of event axes."""
    if isinstance(record, tuple):
        return tuple(map(event_axes, record))
    if not dataclasses.is_dataclass(record):
        return None if record is None else 0
    axes = object.__new__(type(record))
    for f in dataclasses.fields(record):
        x = getattr(record, f.name)
        if f.metadata.get("static"):
            object.__setattr__(axes, f.name, x)
        else:
            object.__setattr__(axes, f.name, f.metadata["event"] if "event" in f.metadata else event_axes(x))
    return axes
