"""Commands of these tests run on one thread and in the same way on all machines."""

import pytest


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HEED_DEVICE", "cpu")
