"""Servers and pytest fixtures for the tests of users."""
