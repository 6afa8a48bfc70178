"""Orders from a topic to a table; totals of them as another; the large ones to a topic, exactly once.

SEALOG_BOOTSTRAP says where the broker is.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
BROKER = {"kafka.bootstrap.servers": os.environ.get("SEALOG_BOOTSTRAP", "127.0.0.1:9092")}


@dp.table
def declared_orders() -> DataFrame:
    return (
        spark.readStream.format("sealog")
        .options(**BROKER)
        .options(subscribe="declared-orders", startingOffsets="earliest")
        .options(valueFormat="json", valueSchema="id int, customer string, amount double")
        .load()
        .select("value.*")
    )


@dp.materialized_view
def declared_totals() -> DataFrame:
    return spark.read.table("declared_orders").groupBy("customer").agg(F.sum("amount").alias("amount"))


dp.create_sink("declared_large", "sealog", {**BROKER, "topic": "declared-large"})


@dp.append_flow(target="declared_large")
def large() -> DataFrame:
    return (
        spark.readStream.table("declared_orders")
        .where("amount > 5")
        .select(F.to_json(F.struct("*")).alias("value"))
    )
