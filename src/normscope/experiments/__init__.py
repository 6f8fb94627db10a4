"""Recipes that reproduce the papers, and the demo: one result per file."""
