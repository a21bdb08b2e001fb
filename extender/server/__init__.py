"""HTTP: listeners, TLS, authorization, limits, and the verbs behind them."""
