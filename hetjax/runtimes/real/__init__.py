"""What all runs on real devices share: the wall clock, deadlines, measured costs."""
