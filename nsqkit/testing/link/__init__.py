"""The connection between a client and a broker, as a machine: its journal and its faults."""
