"""Mesh factors, padding, cost, choice: from proposals to a plan."""
