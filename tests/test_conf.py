"""``conf/spark-defaults.conf`` gives ``spark-submit`` the bridge and the catalog."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_stores import GoldenStore

import rmqlog

DEFAULTS = Path(__file__).parent.parent / "conf" / "spark-defaults.conf"
QUERY = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("paid:", spark.sql("SELECT * FROM rmq.orders WHERE tags = 'PAID'").count())
"""


@pytest.mark.spark
def test_a_job_that_is_submitted_with_it_finds_the_topics_as_tables(
    golden_store: Callable[[str], GoldenStore], tmp_path: Path
) -> None:
    import pyspark

    golden = golden_store("rmq-5.5.0-clean")
    settings = DEFAULTS.read_text("utf-8").replace("/path/of/rmqlog-bridge.jar", rmqlog.jar_path())
    properties = tmp_path / "spark-defaults.conf"
    properties.write_text(settings.replace("/path/of/the/store", str(golden.path)))
    job = tmp_path / "job.py"
    job.write_text(QUERY)

    result = subprocess.run(
        [Path(str(pyspark.__file__)).parent / "bin" / "spark-submit", "--master", "local[1]",
         "--conf", "spark.ui.enabled=false", "--properties-file", properties, job],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable}, cwd=tmp_path, text=True,
        capture_output=True, timeout=600, check=False,
    )

    paid = sum(unit["topic"] == "orders" and unit["msg"]["tags"] == "PAID"
               for unit in golden.units)
    assert result.returncode == 0, result.stderr
    assert f"paid: {paid}" in result.stdout
