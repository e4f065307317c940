"""Metrics as Prometheus reads them, of a server that has translated."""

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.apps.serving.test_server import wait_until

from heed.apps.serving.metrics import SECONDS

TYPES = {
    "heed_requests": "counter",
    "heed_request_seconds": "histogram",
    "heed_queue_seconds": "histogram",
    "heed_tokens": "counter",
    "heed_blank_translations": "counter",
    "heed_cancelled": "counter",
    "heed_rejected": "counter",
    "heed_search_failures": "counter",
    "heed_queue_sentences": "gauge",
    "heed_batch_sentences": "gauge",
}


def test_the_page_of_metrics_is_read_by_prometheus_and_counts_requests(server):
    def samples() -> dict[tuple, float]:
        page = httpx.get(server.url + "/metrics")
        assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(page.text))
        assert {family.name: family.type for family in families} == TYPES
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    endpoint = ("endpoint", "/translate")
    ok, seconds = ("heed_requests_total", endpoint, ("status", "200")), ("heed_request_seconds_count", endpoint)
    before = samples()
    fields = {"q": "three", "source": "en", "target": "de"}
    assert httpx.post(server.url + "/translate", json=fields).status_code == 200
    assert httpx.post(server.url + "/translate", json={}).status_code == 400
    wait_until(lambda: samples().get(seconds, 0) >= before.get(seconds, 0) + 2)  # it counts after it has answered
    after = samples()
    assert after[ok] == before.get(ok, 0) + 1 and after[seconds] == before.get(seconds, 0) + 2
    bounds = [
        dict(labels)["le"] for name, *labels in after if name == "heed_request_seconds_bucket" and endpoint in labels
    ]
    assert bounds == [*map(str, SECONDS), "+Inf"]
    assert after["heed_queue_seconds_count",] == before["heed_queue_seconds_count",] + 1
    side = ("heed_tokens_total", ("side", "source"))
    assert after[side] > before[side]
    assert after["heed_queue_sentences",] == after["heed_batch_sentences",] == after["heed_search_failures_total",] == 0
    assert not any("created" in name for name, *_ in after)
