"""The public names of `penstock.spark`, and the settings of its sessions; no JVM is started."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import penstock.spark
from penstock.spark.session import DEFAULTS, JAVA_OPTIONS, pipeline_conf


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
