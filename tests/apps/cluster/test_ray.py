"""A real Ray cluster of two nodes: a killed worker, driver and node change no byte.

HEED_KILLS: how often each of them is killed, instead of once.
"""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.apps.cluster.places import MODEL, Run, command, digest, lines, n_parts

pytestmark = pytest.mark.slow
N_KILLS = int(os.environ.get("HEED_KILLS", "1"))
PARTS = 60
STORE_BYTES = 100 * 2**20


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU, on loopback."""
    before = dict(os.environ)
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray takes another address than loopback
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def second_node(cluster):
    """Adds the node that is lost."""
    return lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def working() -> list[int]:
    """The processes of this test's actors that make a part: descendants of this process, by the name of Ray's."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        try:
            name = Path("/proc", entry, "cmdline").read_text()
            pid = int(entry)
            parent = pid
            while name.startswith("ray::_Actor.attempt") and parent > 1:
                parent = int(Path("/proc", str(parent), "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    found.append(pid)
                    break
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of Ray's own processes and files
def test_a_killed_worker_driver_and_node_change_nothing(cluster, second_node, tmp_path):
    draw = random.Random(5)
    (tmp_path / "lines.txt").write_text("\n".join(lines(PARTS * 40)) + "\n")
    words = ["translate-shards", MODEL, "--in", tmp_path / "lines.txt", "--part-lines", 40, "--precision", "fp32"]
    done = subprocess.run(command(*words, "--out", tmp_path / "whole"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out, log = tmp_path / "out", tmp_path / "log"

    def start() -> Run:
        return Run(*words, "--out", out, "--cluster", cluster.address, "--workers", 2, log=log, out=out)

    for _ in range(N_KILLS):
        shutil.rmtree(out, ignore_errors=True)
        log.unlink(missing_ok=True)
        node = second_node()
        run = start()
        run.wait_for(draw.randrange(1, PARTS // 10))
        os.kill(draw.choice(run.wait_until(working)), signal.SIGKILL)
        run.wait_for_line("A worker is lost")  # Ray tells of it some seconds later
        run.wait_for(n_parts(out) + draw.randrange(1, PARTS // 10))
        run.kill()
        run = start()
        run.wait_for(n_parts(out) + draw.randrange(1, PARTS // 10))
        cluster.remove_node(node, allow_graceful=False)
        run.end()
        assert "cluster are open" not in log.read_text()  # this cluster is on loopback
        assert digest(out) == digest(tmp_path / "whole")
