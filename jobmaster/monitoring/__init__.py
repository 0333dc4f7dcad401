"""Alert rules for Prometheus and dashboards for Grafana, made from the table of metrics; the place of the probes."""
