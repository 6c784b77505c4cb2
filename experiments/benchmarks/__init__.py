"""What is measured of hetjax, and beside it of its peers."""
