"""sealog for Apache Spark: `format("sealog")`, found by Spark by the name of this package.

Of sealog's own packages it imports nothing but `wire`: it is a client. docs/spark.md is its guide.
"""

from pyspark_sealog.data_source import DefaultSource

__all__ = ("DefaultSource",)
