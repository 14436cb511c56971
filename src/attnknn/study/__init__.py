"""Runs and the pages that show them: for now the demo."""
