"""Apache Kafka's own client, kafka-clients, in a JVM of its own."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.clients.remote import RemoteClient
from tests.support.broker_process import CHECKOUT
from tests.support.kafka_process import require_kafka
from tests.support.toolchains import require_program

SOURCES = Path(__file__).parent / "drivers" / "java"
CACHE = CHECKOUT / ".cache" / "drivers"

# VM output: thread dumps and warnings belong to stderr, stdout is the protocol's.
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+DisplayVMOutputToStderr")


def compiled(sources: Path, jars: Path) -> Path:
    """The folder with the classes of a folder of Java sources, compiled against these jars unless they are."""
    files = sorted(sources.glob("*.java"))
    content = hashlib.sha256(repr(sorted(jar.name for jar in jars.glob("*.jar"))).encode())
    for file in files:
        content.update(file.read_bytes())
    target = CACHE / f"{sources.name}-{content.hexdigest()[:16]}"
    if not target.exists():
        javac = require_program("javac", "the Java client cannot be tested")
        made = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(made, ignore_errors=True)
        subprocess.run(
            [javac, "-Xlint:all,-processing", "-Werror", "-cp", f"{jars}/*", "-d", made, *files], check=True
        )
        made.replace(target)
    return target


class Java(RemoteClient):
    name = "kafka-clients"

    @classmethod
    def command(cls) -> Sequence[str]:
        jars = require_kafka()
        return [*JAVA, "-cp", f"{compiled(SOURCES, jars)}:{jars}/*", "Driver"]
