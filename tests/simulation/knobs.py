"""Sizes in the storage that no setting reaches, made small: a roll, a checkpoint or a snapshot every few records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import broker.node
from broker.topic import Rules
from storage.layout import LogConfig
from txn.metastore import Options


@contextlib.contextmanager
def turned(knobs: Mapping[str, Any]) -> Iterator[None]:
    """In force for every broker of this process meanwhile."""
    of_logs = {
        name: value for name, value in knobs.items() if name in {one.name for one in fields(LogConfig)}
    }
    of_store = {name: value for name, value in knobs.items() if name in {one.name for one in fields(Options)}}
    left = set(knobs) - set(of_logs) - set(of_store)
    assert not left, f"knobs that turn nothing: {left}"
    log_config, options = Rules.log_config, broker.node.Options
    Rules.log_config = lambda self, config: replace(log_config(self, config), **of_logs)  # type: ignore[method-assign]
    broker.node.Options = partial(options, **of_store)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        Rules.log_config = log_config  # type: ignore[method-assign]
        broker.node.Options = options  # type: ignore[misc]
