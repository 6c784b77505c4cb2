"""What is compiled: programs shared by strategies, steps made of them, and counts."""
