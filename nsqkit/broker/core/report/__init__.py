"""The statistics of a broker, for ``/stats`` and statsd."""
