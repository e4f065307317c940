"""Metrics as Prometheus reads them."""

from heed.serving.metrics import Counter, Gauge, Histogram, exposition


def test_metrics_in_prometheus_text_form():
    requests = Counter("requests_total", "Requests.", ["endpoint"])
    requests.add(12345678, 'a"\n')
    seconds = Histogram("seconds", "Time.", bounds=(0.5, 1.0))
    for value in (0.5, 0.75, 9.0):
        seconds.observe(value)
    lines = exposition([requests, Counter("none_total", "None."), Gauge("live", "Live.", lambda: 3), seconds])
    assert lines.splitlines() == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{endpoint="a\\"\\n"} 12345678',
        "# HELP none_total None.",
        "# TYPE none_total counter",
        "none_total 0",
        "# HELP live Live.",
        "# TYPE live gauge",
        "live 3",
        "# HELP seconds Time.",
        "# TYPE seconds histogram",
        'seconds_bucket{le="0.5"} 1',
        'seconds_bucket{le="1.0"} 2',
        'seconds_bucket{le="+Inf"} 3',
        "seconds_sum 10.25",
        "seconds_count 3",
    ]
