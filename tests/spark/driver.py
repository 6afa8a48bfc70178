"""One Spark driver in a process of its own, so that a test can let it be killed: python -m tests.spark.driver ORDERS.

ORDERS is JSON: master, conf, folder, and the queries to run one after the other, as arguments of `sink_world`.
Ends with 0 when all queries ended well.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from tests.spark.faults import FaultySource
from tests.spark.sink_world import run, stream
from tests.spark.spark_world import make_session


def main() -> None:
    orders = json.loads(sys.argv[1])
    spark = make_session(orders["master"], Path(orders["folder"]) / "warehouse", **orders["conf"])
    spark.dataSource.register(FaultySource)
    for query in orders["queries"]:
        frame = stream(spark, query["address"], query["source"], query["tasks"])
        folder = Path(query["folder"])
        folder.mkdir(exist_ok=True)
        run(frame, query["address"], query["target"], folder, query["fault"], **query["options"])
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001
        # At once: where the JVM was killed, Py4J's threads would wait for it.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
