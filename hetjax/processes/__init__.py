"""The processes of a run: how they find each other, agree, and end."""
