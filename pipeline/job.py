"""The pipeline's Spark job: a process that is killed and started again. python -m pipeline.job BOOTSTRAP FOLDER
FLIGHTS

Says on its output, in lines of JSON, how far the queries are.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.streaming import StreamingQuery

from pipeline.queries import (
    CLEAN,
    CLEAN_SCHEMA,
    DELAYS,
    DELAYS_SCHEMA,
    Pipeline,
    batch_size,
    rows_done,
    session,
)


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def report(queries: list[StreamingQuery], ended: threading.Event) -> None:
    while not ended.wait(0.5):
        tell(done={query.name: rows_done(query.lastProgress) for query in queries})


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """One after the other: Spark gives each query's Python process ten seconds to come up."""
    query = start()
    while query.isActive and "nitializing" in query.status["message"]:
        time.sleep(0.1)
    return query


def main(bootstrap: str, folder: Path, flights: int) -> None:
    spark = session(folder)
    pipeline = Pipeline(spark, bootstrap, folder)
    tell(stage="feeding")
    pipeline.make_topics()
    pipeline.feed()
    tell(stage="streaming")
    queries = [
        started(query)
        for query in (lambda: pipeline.enrich(batch_size(flights)), pipeline.delays, pipeline.archive)
    ]
    ended = threading.Event()
    reporter = threading.Thread(target=report, args=(queries, ended), daemon=True)
    reporter.start()
    # All three run at once; each is through when the one before it is and nothing is left.
    for query in queries:
        query.processAllAvailable()
    ended.set()
    reporter.join()
    tell(done={query.name: rows_done(query.lastProgress) for query in queries})
    for query in queries:
        query.stop()
    tell(stage="reading back")
    pipeline.read(CLEAN, CLEAN_SCHEMA).toPandas().to_pickle(folder / "clean.pickle")
    pipeline.read(DELAYS, DELAYS_SCHEMA).toPandas().to_pickle(folder / "delays.pickle")
    tell(stage="done")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
