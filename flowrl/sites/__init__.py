"""Sites: threads and processes that each walk through the program for the instances that live there."""
