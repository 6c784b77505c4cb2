"""Compiled programs, shared by strategies and seeds, and counts of compilations."""
