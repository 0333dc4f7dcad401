# %% [markdown]
# # Which handlers fail, when, and once more
#
# Cell by cell, as in a notebook (VS Code, Jupytext and Databricks open this file as one). It needs
# `pip install "jobmaster-cluster[pipeline]"` and the address of a master in `MASTER_DSN`.

# %%
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("failures by hour").config("spark.sql.session.timeZone", "UTC").getOrCreate()

cluster = {"dsnEnv": "MASTER_DSN", "cluster": os.environ.get("JOBMASTER_CLUSTER", "default")}

# %% [markdown]
# The source reads four columns of the ended jobs from the master, in parallel ranges of ids.

# %%
ended = (
    spark.read.format("jobmaster")
    .options(**cluster)
    .options(table="jobs", states="SUCCEEDED,FAILED", columns="handler,state,ended_at,waited_us")
    .load()
)

by_hour = (
    ended.groupBy("handler", F.date_trunc("hour", "ended_at").alias("hour"))
    .agg(
        F.count("*").alias("jobs"),
        F.count_if(F.col("state") == "FAILED").alias("failed"),
        (F.percentile_approx("waited_us", 0.99, 10_000) / 1e6).alias("p99_wait_seconds"),
    )
    .orderBy(F.desc("failed"), "handler")
)
by_hour.show(20, truncate=False)

# %% [markdown]
# Those that failed, once more. The ids are made of the batch, the handler and the key, so this cell may be run twice.

# %%
failed = (
    spark.read.format("jobmaster")
    .options(**cluster)
    .options(table="jobs", states="FAILED", columns="id,args,handler,priority,lane")
    .load()
    .withColumnRenamed("id", "key")
)
(
    failed.write.format("jobmaster")
    .options(**cluster)
    .options(batch="failures once more", rejects=os.environ.get("REJECTS", "rejects"))
    .mode("append")
    .save()
)

# %% [markdown]
# The same history as a table for SQL.

# %%
listed = ", ".join(f"{name} '{value}'" for name, value in cluster.items())
spark.sql(f"CREATE TABLE IF NOT EXISTS history USING jobmaster OPTIONS ({listed}, columns 'handler,state')")
spark.sql("SELECT state, count(*) AS jobs FROM history GROUP BY state ORDER BY state").show()
spark.sql("DROP TABLE history")
