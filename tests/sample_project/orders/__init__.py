"""A service that bills orders from one NSQ topic and publishes invoices to another."""
