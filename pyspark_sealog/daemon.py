"""Python workers that begin with everything imported.

Spark forks its Python workers from a daemon, and each imports what it needs: about a second for each new worker, and
the commit of every batch of a streaming query is one. `spark.python.daemon.module=pyspark_sealog.daemon` imports it
once, in the daemon.
"""

from pyspark.daemon import manager

import pyspark_sealog.data_source

__all__ = ("pyspark_sealog",)

if __name__ == "__main__":
    manager()
