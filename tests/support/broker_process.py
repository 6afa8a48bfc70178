"""A broker in a process of its own, which tests start, kill, stop and start again on the same port and data.

    with BrokerProcess(tmp_path / "data") as broker:
        client(broker.address)
        broker.sigkill()
        broker.start()

However a test ends, the process has ended when the `with` block is left.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.systems.server_process import (
    CHECKOUT,
    BrokerDied,
    ServerProcess,
    answers_api_versions,
    free_port,
)

__all__ = ("CHECKOUT", "BrokerDied", "BrokerProcess", "ServerProcess", "answers_api_versions", "free_port")


class BrokerProcess(ServerProcess):
    """`sealog serve` from this checkout.

    `args` follow the data directory and address; `module` is run instead of the broker's (the mutants are),
    with `module_args` before `serve`; `preload` are shims, outermost first, whose own variables are in `env`.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        preload: Sequence[Path] = (),
        args: Sequence[str] = (),
        module: str = "broker",
        module_args: Sequence[str] = (),
    ) -> None:
        super().__init__(data, port=port, env=env, log=log)
        self.args = list(args)
        self.module = module
        self.module_args = list(module_args)
        if preload:
            self.env["LD_PRELOAD"] = ":".join(str(library) for library in preload)

    def command(self) -> Sequence[str]:
        serve = ["serve", "--data", str(self.data), "--listen", self.address, *self.args]
        return [sys.executable, "-m", self.module, *self.module_args, *serve]
