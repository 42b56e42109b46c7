"""The manifests of extras/kubernetes, and the alerts and dashboard of extras/monitoring, against
the server's settings and metrics, and by validators of Kubernetes and Prometheus."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import kubernetes_validate
import pytest
import yaml

from config import REPOSITORY, ModelSettings
from tests.helpers.asgi import HELLO, JSON, call, served
from tests.test_server_jobs import open_store
from whosaid.server.settings import ServerSettings

MANIFESTS = sorted((REPOSITORY / "extras" / "kubernetes").glob("*.yaml"))
MONITORING = REPOSITORY / "extras" / "monitoring"
ALERTS, DASHBOARD = MONITORING / "alerts.yml", MONITORING / "dashboard.json"
EXPECTED = REPOSITORY / "tests" / "support" / "alerts.yml"  # by made series
NAME = re.compile(r"\b(?:asr|process)_[a-z_]+\b")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}


def objects():
    texts = [file.read_text(encoding="utf-8") for file in MANIFESTS]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def pods():
    return [each["spec"]["template"]["spec"] for each in objects() if "template" in each["spec"]]


@pytest.mark.parametrize("each", objects(), ids=lambda each: each["kind"])
def test_manifests_follow_the_schemas_of_kubernetes(each):
    kubernetes_validate.validate(each, "1.37", strict=True)


@pytest.mark.parametrize("pod", pods())
def test_pods_suit_the_image_and_its_settings(pod):
    (container,) = pod["containers"]
    fields = ModelSettings.model_fields.keys() | ServerSettings.model_fields.keys()
    assert {each["name"].lower() for each in container["env"]} <= fields
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in dockerfile
    drain = ServerSettings.model_fields["drain_timeout"].default
    assert pod["terminationGracePeriodSeconds"] > drain
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/models", "/tmp"} <= mounts  # the root is read-only
    values = {each["name"]: each["value"] for each in container["env"]}
    assert values.get("DATA_DIR", "/tmp") in mounts


def exposed() -> set[str]:
    """Return the names of all series of a server that has answered and refused requests."""

    async def ask(store) -> str:
        endpoint, app = served(store=store)
        endpoint.release.set()
        async with app.jobs.running():
            await call(app, headers=JSON, parts=HELLO, query=b"stream=true")
            return (await call(app, "GET", "/metrics")).body.decode()

    with TemporaryDirectory() as folder:
        text = asyncio.run(ask(open_store(Path(folder))))
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    return kinds.keys() | {f"{n}{end}" for n, k in kinds.items() for end in SUFFIXES.get(k, ())}


def test_alerts_and_panels_read_metrics_that_exist():
    alerts = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    read = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    read += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    scalers = [each["spec"] for each in objects() if each["kind"] == "HorizontalPodAutoscaler"]
    read += [metric["pods"]["metric"]["name"] for each in scalers for metric in each["metrics"]]
    used = {name for expression in read for name in NAME.findall(expression)}
    assert len(used) > 15
    assert used - exposed() == set()


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="left out: no promtool (apt-get: prometheus)"
)
def test_promtool_accepts_alerts_and_panels(tmp_path):
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = enumerate(dashboard["panels"])
    queries = [(number, it["expr"]) for number, panel in panels for it in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": it.replace("$", "")} for number, it in queries]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for check in (["check", "rules", ALERTS, panels], ["test", "rules", EXPECTED]):
        done = subprocess.run(["promtool", *check], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
