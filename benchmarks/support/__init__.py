"""What the measurements share: the cluster that is measured, its handlers, probes, a made-up history and the reports."""
