"""Recipes to reports: methods compared over seeds and along axes, figures, and the demo."""
