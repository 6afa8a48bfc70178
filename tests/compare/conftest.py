"""The two servers that the cases compare: one of each for the whole run."""

from collections.abc import Iterator

import pytest

from tests.compare.servers import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("compare")) as started:
        yield started
