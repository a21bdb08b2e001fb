"""Access to the API server: requests, lists and watches, Events, leader election."""
