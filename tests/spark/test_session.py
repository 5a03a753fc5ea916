"""The public names of `penstock.spark`, and the settings of its sessions; no JVM is started."""

from __future__ import annotations

import importlib
import pkgutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.spark
from penstock.spark.session import DEFAULTS, JAVA_OPTIONS, MasterError, check_master, is_local, pipeline_conf
from tests.server_process import environment
from tests.spark.journals import Written

PATIENCE_S = 60.0


def test_a_master_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    Written(tmp_path / "data").add(1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{nobody.getsockname()[1]}"
        words = ["pipeline", "run", "--once", "--data", str(tmp_path / "data"), "--master", master]
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *words],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"no Spark master answers at `{master}`: connection refused" in output
    assert "hint: start the master, or correct its address" in output


def test_of_several_masters_one_is_enough_and_a_wrong_address_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there, absent = (f"127.0.0.1:{one.getsockname()[1]}" for one in (somebody, nobody))
        check_master(f"spark://{absent},{there}")
        with pytest.raises(MasterError, match=f"`spark://{absent}`: connection refused"):
            check_master(f"spark://{absent}")
    check_master("local[2]")
    check_master("yarn")
    with pytest.raises(MasterError, match="not the address") as caught:
        check_master("spark://cluster:main")
    assert caught.value.hint == "write `spark://host:7077`"
    asked = ["local[2]", "spark://127.0.0.1:1", "spark://localhost", "spark://127.0.0.1,far:1", "yarn"]
    assert [is_local(master) for master in asked] == [True, True, True, False, False]


@pytest.mark.parametrize("chosen", [None, "/opt/python"])
@pytest.mark.promise("Spark: source and sinks", "workers run the Python that imported `penstock.spark`")
def test_workers_run_this_python_unless_the_user_chose_one(chosen: str | None) -> None:
    env = environment() | ({} if chosen is None else {"PYSPARK_PYTHON": chosen})
    if chosen is None:
        env.pop("PYSPARK_PYTHON", None)
        env.pop("PYSPARK_DRIVER_PYTHON", None)
    show = "import os, penstock.spark; print(os.environ['PYSPARK_PYTHON'])"
    done = subprocess.run([sys.executable, "-c", show], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (chosen or sys.executable)


def test_a_session_that_started_before_the_import_is_named() -> None:
    show = (
        "import sys, types; context = types.ModuleType('pyspark.core.context'); "
        "context.SparkContext = types.SimpleNamespace(_active_spark_context=types.SimpleNamespace(pythonExec='python-x')); "
        "sys.modules['pyspark.core.context'] = context; import penstock.spark"
    )
    env = {name: value for name, value in environment().items() if not name.startswith("PYSPARK_")}
    done = subprocess.run([sys.executable, "-c", show], env=env, capture_output=True, text=True, check=True)
    assert "its workers run `python-x`" in done.stderr and f"PYSPARK_PYTHON={sys.executable}" in done.stderr


def test_public_names_stay_functions_when_every_module_is_loaded() -> None:
    """A module of the same name would take the place of the function once it is imported."""
    for found in pkgutil.walk_packages(penstock.spark.__path__, "penstock.spark."):
        if not found.name.endswith("pipeline.process"):
            importlib.import_module(found.name)
    for name in penstock.spark.__all__:
        assert callable(getattr(penstock.spark, name)), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute `make_sessions`"):
        _ = penstock.spark.make_sessions


def test_the_pipeline_keeps_its_files_in_its_scratch_directory() -> None:
    conf = pipeline_conf("/scratch")
    assert (conf["spark.local.dir"], conf["spark.sql.warehouse.dir"]) == ("/scratch", "/scratch/warehouse")
    assert conf["spark.driver.extraJavaOptions"] == JAVA_OPTIONS
    assert DEFAULTS["spark.sql.session.timeZone"] == "UTC"
