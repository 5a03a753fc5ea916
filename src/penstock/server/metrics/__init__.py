"""Metrics for Prometheus, alert rules and the dashboard for Grafana. Reads counters and changes nothing."""
