"""Dashboards of Grafana as Python; rules and scrape configurations for Prometheus beside it."""
