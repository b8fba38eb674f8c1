"""Breaks everything around a loan, one thing and two at a time, and checks what a loan promises.

See docs/loans-chaos.md.
"""
