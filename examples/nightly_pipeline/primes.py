"""A Spark application that knows nothing of JobMaster: ``spark-submit primes.py 1000 4``."""

import json
import os
import sys
import time
from collections.abc import Iterator

from pyspark.sql import SparkSession


def primes(numbers: Iterator[int]) -> Iterator[int]:
    """Those that are; a tenth of a second for each thousand, so that there is something to see."""
    for number in numbers:
        if number % 1000 == 0:
            time.sleep(0.1)
        if number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number


if __name__ == "__main__":
    below, slices = map(int, sys.argv[1:])
    spark = SparkSession.builder.appName("primes").getOrCreate()
    found = spark.sparkContext.parallelize(range(below), slices).mapPartitions(primes).count()
    print(f"{found} primes below {below}")
    if path := os.environ.get("JOB_RESULT_FILE"):  # the result of the job; without it the job has the exit code alone
        with open(path, "w") as file:
            json.dump({"primes": found}, file)
    spark.stop()
