"""`sealog serve` from this checkout, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.systems.server_process import ServerProcess


class SealogProcess(ServerProcess):
    """`settings` are those of the configuration file; `program` stands in front of the command (a profiler)."""

    start_timeout_s = 120.0
    stop_timeout_s = 120.0

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        super().__init__(data, port=port, env=env)
        self.settings = dict(settings or {})
        self.program = list(program)

    def command(self) -> Sequence[str]:
        args = ["serve", "--data", str(self.data), "--listen", self.address]
        if self.settings:
            file = self.data.with_name(f"{self.data.name}.toml")
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = [f"{name} = {_toml(value)}\n" for name, value in self.settings.items()]
            file.write_text("".join(lines), encoding="utf-8")
            args += ["--config", str(file)]
        return [*self.program, sys.executable, "-m", "broker", *args]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
