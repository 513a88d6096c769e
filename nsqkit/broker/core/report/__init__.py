"""What a broker says about itself: ``/stats`` and statsd."""
